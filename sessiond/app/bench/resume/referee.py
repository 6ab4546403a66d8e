"""Has one contestant do everything, and writes down what it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sessiond.app.bench.arrivals import UnexpectedPathError
from sessiond.app.bench.resume import files, noise, usage
from sessiond.app.bench.resume.ask import Answer, require_close, require_same
from sessiond.app.bench.resume.contestant import Contestant, Prepared
from sessiond.app.bench.resume.options import COLD, COMPETITION, HELD_CONTEXTS, PRESSURE, RAM, VRAM
from sessiond.app.bench.resume.ours import Ours
from sessiond.app.bench.resume.samples import (
    FIRST_TURN,
    PREPARED,
    WARM_TURN,
    ColdStart,
    Found,
    Sample,
)
from sessiond.app.bench.resume.sessions import Context, PassOrder
from sessiond.app.bench.resume.track import Track
from sessiond.app.bench.resume.usage import Work
from sessiond.app.trials import Say, drop_page_cache


@dataclass(frozen=True)
class Book:
    """What all referees share."""

    track: Track
    found: Found
    say: Say
    drop_page_cache: Callable[[], bool] = drop_page_cache


class Referee:
    """Follows one contestant through one pass.

    :param due_s: when arrivals are due, under pressure and competition
    """

    def __init__(
        self, one: Contestant, order: PassOrder, due_s: Sequence[float], book: Book
    ) -> None:
        self._one, self._order, self._due_s = one, order, due_s
        self._track, self._found, self._say = book.track, book.found, book.say
        self._drop = book.drop_page_cache
        self._references: dict[str, Answer] = {}
        self._came: list[Context] = []  #: under load, in the order in which they were served

    @property
    def fills_memory(self) -> bool:
        """Whether more of the longest sessions take part than memory holds."""
        return len(self._order.longest) > HELD_CONTEXTS

    def skip(self, scenario: str) -> None:
        """Note that a scenario needs more sessions."""
        self._found.skipped[scenario] = (
            f"not measured: memory holds {HELD_CONTEXTS} sessions, a pass needs more rounds"
        )

    def prepare(self) -> None:
        """Have all sessions take their first turns, and their KV stored."""
        if not self._one.keeps:
            return
        self._say(f"{self._one.name}: starting, to prepare sessions")
        self._one.restart()
        self._one.arrive(self._track.warm_up())
        before = self._work()
        for context in (*self._order.prepared, self._order.first):
            prepared = self._one.prepare(context)
            self._references[context.name] = prepared.warm
            if context is not self._order.first:
                self._note_prepared(context, prepared)
        self._add_work(PREPARED, before)

    def cold(self) -> None:
        """Kill and start the engine, and have every session come back once."""
        self._say(f"{self._one.name}: restarting the engine")
        began_s = time.perf_counter()
        self._one.restart()
        start_s = time.perf_counter() - began_s
        first_s = self._one.arrive(self._track.warm_up()).seconds
        arrival = self._one.arrive(self._order.first)
        self._check(self._order.first, arrival, exact=True)
        self._found.cold_starts.append(ColdStart(self._one.name, start_s, first_s, arrival.seconds))
        self._say(f"{self._one.name}: {len(self._order.arriving)} sessions come back")
        for context in self._order.arriving:
            self._cold_arrival(context)
        self._found.memory[self._one.name] = usage.memory(self._one.processes())

    def pressure(self) -> None:
        """Have more sessions come back in turn than memory holds."""
        self._say(f"{self._one.name}: more sessions than memory holds")
        self._scheduled(PRESSURE)

    def competition(self) -> None:
        """The same while the disk is read and written by another process."""
        self._say(f"{self._one.name}: with competition for the disk")
        with noise.beside(self._track.folder / "noise") as other:
            self._scheduled(COMPETITION)
            self._found.competition_bytes[self._one.name] = other.work()

    def capacity(self) -> None:
        """See which of the sessions that came under load are still in memory."""
        if not self._came:
            return
        if not self._one.keeps:
            self._found.capacity["vram"] = self._still_there("cached_tokens")
        elif isinstance(self._one, Ours):
            self._one.clear_vram()
            self._found.capacity["ram"] = self._still_there("ram_tokens")

    def _cold_arrival(self, context: Context) -> None:
        files.forget(self._one.folder)
        dropped = self._drop()
        self._found.page_cache_dropped &= dropped
        rates = self._found.device_bytes_s.setdefault(self._one.name, {})
        rates[context.name] = self._track.device_bytes_s()
        before = self._work()
        answer = self._one.arrive(context)
        done = self._add_work(COLD, before)
        self._check(context, answer, exact=True)
        whole = context.whole_tokens if self._one.keeps else 0
        if answer.cached_tokens != whole:
            raise UnexpectedPathError(
                f"{self._one.name}: {answer.cached_tokens} tokens of {context.name} came back, "
                f"{whole} should have."
            )
        self._note(self._one.name, COLD, context, answer, done=done)
        if not self._one.keeps:
            self._note(VRAM, COLD, context, self._one.arrive(context))

    def _still_there(self, kind: str) -> int:
        """Return how many of those that came last need nothing but memory."""
        for count, context in enumerate(reversed(self._came)):
            answer = self._one.arrive(context)
            if {"cached_tokens": answer.cached_tokens, **answer.split}[kind] < context.whole_tokens:
                return count
        return len(self._came)

    def _scheduled(self, scenario: str) -> None:
        """Have the longest sessions come back at their times, whether others are done or not."""
        contexts = self._order.longest
        before, first_s = self._work(), time.perf_counter()

        def come(context: Context, due_s: float) -> tuple[Context, Answer, float]:
            time.sleep(max(0.0, first_s + due_s - time.perf_counter()))
            answer = self._one.arrive(context)
            return context, answer, answer.ended_s - first_s - due_s

        with ThreadPoolExecutor(len(contexts)) as pool:
            came = list(pool.map(come, contexts, self._due_s))
        self._add_work(scenario, before)
        for context, answer, seconds in came:
            self._check(context, answer, exact=False)
            self._note(self._one.name, scenario, context, answer, seconds=seconds)
        self._came = [context for context, *_ in sorted(came, key=_ended_s)]

    def _check(self, context: Context, answer: Answer, *, exact: bool) -> None:
        reference = self._references.get(context.name)
        if reference is not None and answer.cached_tokens >= context.whole_tokens:
            require = require_same if exact else require_close
            require(self._one.name, context, answer, reference)
            self._found.tokens_checked += 1

    def _note_prepared(self, context: Context, prepared: Prepared) -> None:
        name = self._one.name
        self._note(name, FIRST_TURN, context, prepared.first)
        self._note(name, WARM_TURN, context, prepared.warm)
        if prepared.ram is not None:
            require_same(RAM, context, prepared.ram, prepared.warm)
            self._found.tokens_checked += 1
            self._note(RAM, COLD, context, prepared.ram)
        self._found.stored_bytes.setdefault(name, {})[context.name] = prepared.stored_bytes
        self._found.store_s.setdefault(name, {})[context.name] = prepared.store_s

    def _note(  # noqa: PLR0913 - a sample's parts
        self,
        series: str,
        scenario: str,
        context: Context,
        answer: Answer,
        *,
        done: Work | None = None,
        seconds: float | None = None,
    ) -> None:
        done = done or Work()
        self._found.samples.append(
            Sample(
                series,
                scenario,
                context.name,
                context.whole_tokens,
                answer.seconds if seconds is None else seconds,
                answer.cached_tokens,
                done.cpu_s,
                done.read_bytes,
                done.written_bytes,
            )
        )

    def _work(self) -> Work:
        return usage.work(self._one.processes())

    def _add_work(self, scenario: str, before: Work) -> Work:
        done = self._work() - before
        by_scenario = self._found.work.setdefault(self._one.name, {})
        by_scenario[scenario] = by_scenario.get(scenario, Work()) + done
        return done


def _ended_s(came: tuple[Context, Answer, float]) -> float:
    return came[1].ended_s
