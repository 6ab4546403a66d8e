"""``sessiond bench interference``: what others notice of suspends and resumes.

Streams decode while sessions arrive one after the other at fixed times. A cycle has a block of
each kind with the same sessions: their turns served from VRAM, their suspends, and their turns
served from disk. Where the first one lies in the cycle rotates.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sessiond.app.bench.arrivals import Arrival, prompts
from sessiond.app.bench.figures import gaps, percentile
from sessiond.app.bench.kv import CHUNK_TOKENS
from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.bench.stage import own_folder, start_with_small_ram
from sessiond.app.bench.streams import Stamps, flowing
from sessiond.app.trials import Say
from sessiond.domain.errors import ConfigurationError
from sessiond.testing.model import MODEL_NAME
from sessiond.testing.stack import Stack

ALONE, VRAM, SUSPEND, RESUME = "alone", "vram", "suspend", "resume"
_STREAM_PROMPT_TOKENS = 64
#: After a block's last arrival its consequences are still watched.
_TAIL_S = 0.3
_ALONE_S = 4.0
_CONTEXT_LIMIT_TOKENS = 7936
_KV_SPACE_GIB = 2
#: Sessions and streams fill at most this part of it.
_KV_SPACE_TOKENS = 60_000


@dataclass(frozen=True)
class InterferenceOptions:
    """How many arrivals of what size."""

    folder: Path
    models: Path
    arrivals: int = 50  #: of each kind
    sessions: int = 10  #: in one cycle
    context_tokens: int = 4096
    streams: int = 2
    interval_s: float = 1.0

    @property
    def cycles(self) -> int:
        """Cycles until there were enough arrivals."""
        return -(-self.arrivals // self.sessions)

    @property
    def prompt_tokens(self) -> int:
        """Whole chunks and one token more."""
        return self.context_tokens // CHUNK_TOKENS * CHUNK_TOKENS + 1

    def require_possible(self) -> None:
        """Check what the engine's memory allows.

        :raises ConfigurationError: it cannot be measured
        """
        if min(self.arrivals, self.sessions, self.streams) < 1 or self.interval_s <= 0:
            raise ConfigurationError("Arrivals, sessions, streams and interval are above zero.")
        if not CHUNK_TOKENS <= self.context_tokens <= _CONTEXT_LIMIT_TOKENS:
            raise ConfigurationError(
                f"A context has {CHUNK_TOKENS} to {_CONTEXT_LIMIT_TOKENS} tokens."
            )
        if self.sessions * self.prompt_tokens > _KV_SPACE_TOKENS:
            raise ConfigurationError("So many sessions of this length do not fit the VRAM cache.")


@dataclass
class Watch:
    """What was seen, by kind of block."""

    gaps_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    p99_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def block(self, kind: str, streams: Sequence[Stamps]) -> Iterator[None]:
        """Count the gaps of what happens meanwhile."""
        begin_s = time.perf_counter()
        yield
        time.sleep(_TAIL_S)
        end_s = time.perf_counter()
        found = [gap for stamps in streams for gap in stamps.gaps_s(begin_s, end_s)]
        self.gaps_s[kind] += found
        self.p99_s[kind].append(percentile(found, 99))


def measure_interference(options: InterferenceOptions, say: Say) -> dict[str, Any]:
    """Start an engine and a daemon, measure, and return the report.

    :raises ConfigurationError: the options cannot be used.
    :raises UnexpectedPathError: an arrival was not served as it should have been.
    """
    options.require_possible()
    with own_folder(options.folder, "interference") as folder, Stack(folder) as stack:
        say("starting sessiond and the engine")
        bench = _Bench(stack, options, say)
        bench.start()
        for cycle in range(options.cycles):
            say(f"cycle {cycle + 1} of {options.cycles}")
            bench.cycle(cycle)
        return _report(bench.watch, options)


class _Bench:
    def __init__(self, stack: Stack, options: InterferenceOptions, say: Say) -> None:
        self.watch = Watch()
        self._stack, self._options, self._say = stack, options, say
        self._tokens: list[int] = []

    def start(self) -> None:
        # The smallest RAM tier that takes a context: what was suspended is soon on disk alone.
        chunks = self._options.context_tokens // CHUNK_TOKENS + 4
        self._tokens = start_with_small_ram(
            self._stack, self._options.models, chunks, _KV_SPACE_GIB
        )

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._stack.engine_port}"

    def cycle(self, number: int) -> None:
        arrivals = self._arrivals(number)
        for arrival in arrivals:
            arrival.begin()
        with self._streams() as streams, self.watch.block(ALONE, streams):
            time.sleep(_ALONE_S)
        for kind in order(number):
            if kind == RESUME:
                self._stack.clear_vram()
            self._block(kind, arrivals)
        for arrival in arrivals:
            arrival.end()

    def _arrivals(self, cycle: int) -> list[Arrival]:
        count, ports = self._options.sessions, (self._stack.daemon_port, self._stack.engine_port)
        texts = prompts(self._tokens, self._options.prompt_tokens, cycle * count, count)
        return [
            Arrival(f"cycle-{cycle}-session-{place}", *ports, text)
            for place, text in enumerate(texts)
        ]

    def _streams(self) -> Any:  # noqa: ANN401 - a context manager of lists
        pieces = prompts(self._tokens, _STREAM_PROMPT_TOKENS, 1, self._options.streams)
        return flowing(self._url, pieces)

    def _block(self, kind: str, arrivals: Sequence[Arrival]) -> None:
        with self._streams() as streams, self.watch.block(kind, streams):
            first_s = time.perf_counter()
            for place, arrival in enumerate(arrivals):
                due_s = first_s + place * self._options.interval_s
                time.sleep(max(0.0, due_s - time.perf_counter()))
                began_s = time.perf_counter()
                _action(kind, arrival)()
                self.watch.took_s[kind].append(time.perf_counter() - began_s)


def order(cycle: int) -> tuple[str, ...]:
    """Return the kinds of blocks of a cycle: a suspend comes before a resume."""
    kinds = [SUSPEND, RESUME]
    kinds.insert(cycle % 3, VRAM)
    return tuple(kinds)


def _action(kind: str, arrival: Arrival) -> Callable[[], None]:
    return {VRAM: arrival.from_vram, SUSPEND: arrival.suspend, RESUME: arrival.from_disk}[kind]


def _report(watch: Watch, options: InterferenceOptions) -> dict[str, Any]:
    found = {kind: gaps(values) for kind, values in watch.gaps_s.items()}
    reference = found[VRAM].p99_s
    return {
        "kind": "interference",
        "ratios": {
            "tpot_p99_suspend": found[SUSPEND].p99_s / reference,
            "tpot_p99_resume": found[RESUME].p99_s / reference,
        },
        "longest_stall_s": {kind: one.longest_s for kind, one in found.items()},
        "gaps": {kind: asdict(one) for kind, one in found.items()},
        "p99_s_by_cycle": dict(watch.p99_s),
        "arrivals": {
            kind: {
                "count": len(values),
                "median_s": percentile(values, 50),
                "longest_s": max(values),
            }
            for kind, values in watch.took_s.items()
        },
        "model": MODEL_NAME,
        "context_tokens": options.prompt_tokens,
        "streams": options.streams,
        "interval_s": options.interval_s,
        "machine": describe_machine(options.folder.absolute()),
        "versions": versions(),
    }
