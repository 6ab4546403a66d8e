"""The mover as the coordinator sees it: what it was asked, and what happens when it dies.

A mover that leaves a question unanswered for too long hangs, and is killed. Its slots of the
RAM tier are nobody's until it is gone, so its jobs end only then, and only then is another one
started.

It is gone when it has exited, or when each of its threads is dead or sleeps uninterruptibly in
the kernel. Such a thread runs no more of its program, however late it wakes up: SIGKILL waits
for it where it would return. What it had asked the kernel for may still happen: bytes come into
a buffer of its own, never into a slot; a file without a name grows; at worst a manifest that was
just being linked gets its name. Then a whole snapshot is there of which nobody was told, as
after a crash at that moment. So a replaced mover needs no fence of its own; one that outlives
its engine has one (:meth:`sessiond.store.store.Store.commit_manifest`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sessiond.connector.mover import protocol
from sessiond.connector.questions import Question, Questions

logger = logging.getLogger("vllm.sessiond.mover")

#: After so many deaths within an hour none is started any more: the machine is not well.
MAX_DEATHS = 5
_DEATHS_COUNT_S = 3600.0
_POLL_S = 0.001
#: Between two attempts to start one: what is short of processes or memory may soon not be.
RETRY_S = 1.0

#: Nobody waits for these answers.
_OF_NO_WEIGHT = (protocol.Ready, protocol.Progress)
#: To lose these at a mover's end costs nothing: the next one is told all heads again.
_OF_LITTLE_WEIGHT = (*_OF_NO_WEIGHT, protocol.HeadWritten)


class MoverLink(Protocol):
    """A connection to one mover; no method blocks, except ``close``."""

    def send(self, message: protocol.Message) -> None:
        """Queue a message."""

    def poll(self) -> list[protocol.Message]:
        """Return what arrived."""

    def wait(self, timeout_s: float) -> None:
        """Return when something arrives, or after *timeout_s*: the only method that waits."""

    def is_connected(self) -> bool:
        """Whether it still answers."""

    def kill(self) -> None:
        """End it at once."""

    def is_gone(self) -> bool:
        """Whether it can touch the RAM tier no more."""

    def close(self) -> None:
        """End it in good order."""


@dataclass(frozen=True)
class JobDone:
    """The end of one job; the slots of chunks that are not good hold nothing of use."""

    job_id: int
    good_chunks: frozenset[int]
    all_good: bool
    seconds: float = 0.0
    moved_bytes: int = 0


class MoverWatch:
    """Keeps one mover running.

    :param start: starts one; ``None``: not before :meth:`start`
    :param deadline_s: for one question
    :param on_death: called when the mover can answer no more, before its jobs have ended
    :param on_replaced: called when another one was started
    :raises OSError: none could be started
    """

    def __init__(
        self,
        start: Callable[[], MoverLink] | None,
        deadline_s: float,
        on_death: Callable[[], None],
        on_replaced: Callable[[], None],
    ) -> None:
        self._start = start
        self._deadline_s = deadline_s
        self._on_death = on_death
        self._on_replaced = on_replaced
        self._mover: MoverLink | None = None
        self._dying: MoverLink | None = None
        self._questions = Questions()
        self._jobs: dict[int, frozenset[int]] = {}
        self._done: list[JobDone] = []
        self._died_s: list[float] = []
        self._retry_at_s = 0.0
        if start is not None:
            self._begin_with(start())

    def start(self, start: Callable[[], MoverLink]) -> None:
        """Start the first one; later ones the same way."""
        self._start = start
        self._replace()

    @property
    def deaths(self) -> int:
        """How often a mover died, or could not be started, within the last hour."""
        since_s = time.monotonic() - _DEATHS_COUNT_S
        return sum(1 for died_s in self._died_s if died_s >= since_s)

    @property
    def is_usable(self) -> bool:
        """Whether there is a mover to ask."""
        return self._mover is not None

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to work."""
        return self._mover is not None and not self._questions.await_start

    @property
    def is_expected(self) -> bool:
        """Whether another one will be started where there is none."""
        return self._start is not None and (self._dying is not None or self.deaths < MAX_DEATHS)

    @property
    def has_work(self) -> bool:
        """Whether an answer is due, a job has just ended, or a mover is to be started."""
        replaces = self._mover is None and self.is_expected
        return bool(self._questions or self._jobs or self._done or replaces)

    @property
    def awaits_answer(self) -> bool:
        """Whether a question is open; until a mover has begun to work, one is."""
        return bool(self._questions)

    def wait(self, timeout_s: float) -> None:
        """Return when the mover has answered something, or after *timeout_s*."""
        if self._mover is not None:
            self._mover.wait(timeout_s)
        else:
            time.sleep(timeout_s)

    @property
    def has_jobs(self) -> bool:
        """Whether a job runs."""
        return bool(self._jobs)

    def tell(self, message: protocol.Message) -> None:
        """Send a message; without a mover it is dropped."""
        if self._mover is not None:
            self._mover.send(message)

    def ask(self, question: Question) -> None:
        """Send a question; a mover that does not answer it in time is replaced."""
        if self._mover is not None:
            self._questions.ask(question, time.monotonic())
            self._mover.send(question)

    def begin(self, job_id: int, chunks: frozenset[int]) -> None:
        """Note a job that the mover is about to be asked for."""
        self._jobs[job_id] = chunks

    def end(self, job_id: int) -> frozenset[int] | None:
        """Take the chunks of a job that was answered; ``None`` if it was given up before."""
        return self._jobs.pop(job_id, None)

    def report(self, done: JobDone) -> None:
        """Have vLLM told of a job's end."""
        self._done.append(done)

    def take_done(self) -> list[JobDone]:
        """Return the jobs that ended since the last call."""
        done, self._done = self._done, []
        return done

    def poll(self) -> list[protocol.Message]:
        """Return the mover's answers; replace it when it hangs or has ended."""
        # Asked first, and acted upon only when nothing is left to read: what it has answered
        # before its end was done.
        connected = self._mover is not None and self._mover.is_connected()
        answers = self._mover.poll() if self._mover is not None else []
        for answer in answers:
            self._questions.note(answer, time.monotonic())
        if all(isinstance(each, _OF_LITTLE_WEIGHT) for each in answers):
            self._watch(connected=connected)
        return [each for each in answers if not isinstance(each, _OF_NO_WEIGHT)]

    def end_jobs(self) -> None:
        """Kill the mover and block until no job is left."""
        while self._jobs:
            self._watch(connected=False)
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the mover in good order."""
        if self._mover is not None:
            self._mover.close()

    def _watch(self, *, connected: bool) -> None:
        if self._mover is not None and (not connected or self._hangs()):
            logger.error("sessiond: the mover %s", "hangs" if connected else "has ended")
            self._mover.kill()
            self._dying, self._mover = self._mover, None
            self._questions.clear()
            self._died_s.append(time.monotonic())
            self._on_death()
        if self._dying is not None and self._dying.is_gone():
            self._dying = None
            for job_id in self._jobs:
                self._done.append(JobDone(job_id, frozenset(), all_good=False))
            self._jobs.clear()
        if self._mover is None and self._dying is None and self._may_start:
            self._replace()

    def _hangs(self) -> bool:
        return self._questions.are_late(self._deadline_s, time.monotonic())

    @property
    def _may_start(self) -> bool:
        return self.deaths < MAX_DEATHS and time.monotonic() >= self._retry_at_s

    def _replace(self) -> None:
        if self._start is None:
            return
        try:
            mover = self._start()
        except OSError:
            logger.exception("sessiond: no mover could be started")
            self._died_s.append(time.monotonic())
            self._retry_at_s = time.monotonic() + RETRY_S
            self._on_death()
            return
        self._begin_with(mover)
        self._on_replaced()

    def _begin_with(self, mover: MoverLink) -> None:
        self._mover = mover
        self._questions.started(time.monotonic())
