"""Measures what a ticketed request waits for, from its arrival until its first token.

A stopwatch is in one stage at a time, so that stages never overlap and leave nothing out. Most
of them begin and end where it is decided what a request waits for. The ends of a prefill are
found from the engine's steps: no hook of vLLM's tells which requests have an output, but each
request knows how many of its tokens are computed.

A step costs a look at each ticketed request that is not ready yet, and nothing for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import NamedTuple

from sessiond.domain.heads import TurnSplit
from sessiond.domain.timing import TurnTiming

#: vLLM needs at most so many steps from the end of the last read until it copies the chunks. If
#: they are not copied by then, the request waits for VRAM or for its place in the batch.
_STEPS_TO_COPY = 2
_MICROSECONDS = 6  # digits


class Stage(Enum):
    """What a request waits for."""

    LOOKUP = auto()  #: the mover's answer what can be loaded
    QUEUE = auto()  #: room in the RAM tier
    LOAD = auto()  #: KV, on its way into VRAM
    WAITING = auto()  #: vLLM
    PREFILL = auto()  #: its own computation
    READY = auto()  #: nothing: its first token is out


_BUSY = (Stage.LOAD, Stage.PREFILL)


class Mark(NamedTuple):
    """One moment."""

    at_s: float  #: monotonic
    ran_s: float  #: until then, what all the engine's requests together have run


class Stopwatch:
    """The stages of one request.

    :param mark: returns the present moment
    :param computed: returns how many of the request's tokens are computed
    """

    def __init__(
        self, mark: Callable[[], Mark], prompt_tokens: int, computed: Callable[[], int]
    ) -> None:
        self._mark = mark
        self._prompt_tokens = prompt_tokens
        self._computed = computed
        self._stage = Stage.WAITING
        self._arrived = self._since = mark()
        self._spent_s = dict.fromkeys(Stage, 0.0)
        self._ran_s = 0.0  # all requests together, while this one was busy
        self._from_token = 0
        self._first_step: Mark | None = None
        self._steps_since_read: int | None = None
        self._read_bytes = 0
        self._read_s = self._decode_s = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether its first token is out."""
        return self._stage is Stage.READY

    def enter(self, stage: Stage, since: Mark | None = None) -> None:
        """Begin a stage, now or *since* then; nothing changes for a request that was ready."""
        if self.is_ready:
            return
        now = since or self._mark()
        # One that is preempted computes again what it had: its time was lost, not spent.
        undone = self._stage is Stage.PREFILL and stage is not Stage.READY
        before = Stage.WAITING if undone else self._stage
        self._spent_s[before] += now.at_s - self._since.at_s
        if before in _BUSY:
            self._ran_s += now.ran_s - self._since.ran_s
        self._stage, self._since = stage, now
        self._first_step = self._steps_since_read = None

    def leave(self, *stages: Stage) -> None:
        """End the current stage if it is one of these."""
        if self._stage in stages:
            self.enter(Stage.WAITING)

    def read(self, stored_bytes: int, read_s: float, decode_s: float) -> None:
        """Chunks were read into RAM."""
        if not self.is_ready:
            self._read_bytes += stored_bytes
            self._read_s += read_s
            self._decode_s += decode_s

    def reads_over(self) -> None:
        """No chunk is being read: vLLM may copy them into VRAM."""
        if self._stage is Stage.LOAD:
            self._steps_since_read = 0

    def placed(self, external_tokens: int) -> None:
        """The request was given its blocks; so many tokens are copied into them."""
        if self._stage is Stage.LOOKUP:
            self._stage = Stage.WAITING  # what it could have loaded was not waited for
        if not external_tokens:
            self.enter(Stage.WAITING)
        elif self._stage is not Stage.LOAD:
            self.enter(Stage.LOAD)
        self._steps_since_read = None

    # Steps

    def computes(self, now: Mark) -> None:
        """A step is scheduled that computes for the request."""
        self.leave(Stage.LOOKUP, Stage.QUEUE, Stage.LOAD)
        if self._stage is Stage.WAITING and self._first_step is None:
            self._first_step, self._from_token = now, self._computed()

    def passed_over(self) -> None:
        """A step is scheduled that does not."""
        if self._steps_since_read is None:
            return
        self._steps_since_read += 1
        if self._steps_since_read > _STEPS_TO_COPY:
            self.enter(Stage.WAITING)

    def output(self, computed_tokens: int, earlier: Mark) -> None:
        """The output of a step has come; *earlier*: that of the one before.

        A step that was scheduled ahead begins when the one before it has ended.
        """
        if self._first_step is not None and computed_tokens > self._from_token:
            self.enter(Stage.PREFILL, max(self._first_step, earlier))
        if self._stage is Stage.PREFILL and computed_tokens >= self._prompt_tokens:
            self.enter(Stage.READY)

    def look(self, earlier: Mark) -> None:
        """The output of a step has come, perhaps one of this request."""
        if self._first_step is not None or self._stage is Stage.PREFILL:
            self.output(self._computed(), earlier)

    def timing(self, split: TurnSplit) -> TurnTiming:
        """Return the stages until now; *split*: where the prompt's tokens came from."""
        self.enter(self._stage)
        spent_s = {stage: round(spent, _MICROSECONDS) for stage, spent in self._spent_s.items()}
        return TurnTiming(
            lookup_s=spent_s[Stage.LOOKUP],
            queue_s=spent_s[Stage.QUEUE],
            load_s=spent_s[Stage.LOAD],
            waiting_s=spent_s[Stage.WAITING],
            prefill_s=spent_s[Stage.PREFILL],
            ready_s=round(self._since.at_s - self._arrived.at_s, _MICROSECONDS),
            read_s=round(self._read_s, _MICROSECONDS),
            decode_s=round(self._decode_s, _MICROSECONDS),
            read_bytes=self._read_bytes,
            ram_tokens=split.ram_tokens,
            disk_tokens=split.disk_tokens,
            prefill_from_token=self._from_token,
            prefill_to_token=self._prompt_tokens if self.is_ready else self._from_token,
            others_running=self._others_running(),
        )

    def _others_running(self) -> float:
        own_s = self._spent_s[Stage.PREFILL]
        busy_s = sum(self._spent_s[stage] for stage in _BUSY)
        return round(max(0.0, self._ran_s - own_s) / busy_s, 3) if busy_s > 0 else 0.0


class Steps:
    """The engine's steps, as stopwatches need them."""

    def __init__(self) -> None:
        self._watched: dict[str, Stopwatch] = {}  # by request id; not ready yet
        self._running = 0  # requests that the newest step computes for
        self._scheduled = Mark(time.monotonic(), 0.0)  # it
        self._output = self._scheduled  # of the last one whose output has come

    def mark(self) -> Mark:
        """Return the present moment."""
        now_s, since = time.monotonic(), self._scheduled
        return Mark(now_s, since.ran_s + self._running * (now_s - since.at_s))

    def watch(self, request_id: str, stopwatch: Stopwatch) -> None:
        """Let a request's stopwatch know of steps from now on, until it is ready."""
        self._watched[request_id] = stopwatch

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._watched.pop(request_id, None)

    def began(self, request_ids: Collection[str]) -> None:
        """A step is scheduled; it computes for these requests."""
        self._scheduled = now = self.mark()
        self._running = len(request_ids)
        for request_id, stopwatch in self._watched.items():
            if request_id in request_ids:
                stopwatch.computes(now)
            else:
                stopwatch.passed_over()

    def ended(self) -> None:
        """The output of a step has come."""
        ready = []
        for request_id, stopwatch in self._watched.items():
            stopwatch.look(self._output)
            if stopwatch.is_ready:
                ready.append(request_id)
        for request_id in ready:
            self.forget(request_id)
        self._output = self.mark()

    def finished(self, request_id: str, computed_tokens: int) -> None:
        """A request ends, perhaps with the output that is just coming."""
        stopwatch = self._watched.pop(request_id, None)
        if stopwatch is not None:
            stopwatch.output(computed_tokens, self._output)
