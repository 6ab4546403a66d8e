"""The sessions of a run, and the order of everything: both follow from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sessiond.app.bench.arrivals import prompts
from sessiond.app.bench.resume.options import TAIL_TOKENS, ResumeOptions

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """One session: a context that goes away and comes back."""

    name: str
    prompt: tuple[int, ...]

    @property
    def whole_tokens(self) -> int:
        """What is kept of it, in whole chunks."""
        return len(self.prompt) - TAIL_TOKENS


@dataclass(frozen=True)
class PassOrder:
    """One pass through all contestants."""

    number: int
    contestants: tuple[str, ...]
    prepared: tuple[Context, ...]  #: in this order
    arriving: tuple[Context, ...]  #: the same ones, in another order
    first: Context  #: comes back first after a restart, and is reported apart

    @property
    def longest(self) -> tuple[Context, ...]:
        """Those of the longest context, as they arrive."""
        most = max(context.whole_tokens for context in self.arriving)
        return tuple(one for one in self.arriving if one.whole_tokens == most)


def orders(
    tokens: Sequence[int], options: ResumeOptions, contestants: Sequence[str]
) -> list[PassOrder]:
    """Return the passes: each has rounds of its own, every second one runs backwards.

    :param tokens: of a text; sessions are different pieces of it
    :param contestants: that take part
    """
    lengths = options.whole_tokens
    order = random.Random(options.seed)  # noqa: S311 - an order, not a secret
    found: list[PassOrder] = []
    shuffled = _shuffled(order, contestants)
    made = 0
    for number in range(options.passes):
        contexts = []
        for turn in range(number, options.rounds, options.passes):
            for length in lengths:
                contexts.append(_context(tokens, f"round-{turn}-tokens-{length}", length, made))
                made += 1
        first = _context(tokens, f"first-{number}", min(lengths), made)
        made += 1
        found.append(
            PassOrder(
                number,
                shuffled if number % 2 == 0 else shuffled[::-1],
                _shuffled(order, contexts),
                _shuffled(order, contexts),
                first,
            )
        )
    return found


def due_s(count: int, interval_s: float, seed: int) -> list[float]:
    """Return when arrivals are due: about *interval_s* apart, the same for the same seed."""
    order = random.Random(seed)  # noqa: S311 - times, not secrets
    spread = [order.uniform(0, interval_s / 2) for _ in range(count)]
    return [place * interval_s + more for place, more in enumerate(spread)]


def _context(tokens: Sequence[int], name: str, length: int, place: int) -> Context:
    (prompt,) = prompts(tokens, length + TAIL_TOKENS, place, 1)
    return Context(name, tuple(prompt))


def _shuffled(order: random.Random, items: Sequence[T]) -> tuple[T, ...]:
    return tuple(order.sample(list(items), len(items)))
