"""The mover as the coordinator sees it: what it was asked, and what happens when it dies.

A mover that hangs is killed. Its slots of the RAM tier are nobody's until it is gone, so its
jobs end only then, and only then is another one started.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sessiond.connector.mover import protocol

logger = logging.getLogger("vllm.sessiond.mover")

#: After so many deaths none is started any more: something is wrong with the machine.
MAX_DEATHS = 5


class MoverLink(Protocol):
    """A connection to one mover; no method blocks, except ``close``."""

    def send(self, message: protocol.Message) -> None:
        """Queue a message."""

    def poll(self) -> list[protocol.Message]:
        """Return what arrived."""

    def is_connected(self) -> bool:
        """Whether it still answers."""

    def kill(self) -> None:
        """End it at once."""

    def is_gone(self) -> bool:
        """Whether it can touch the RAM tier no more."""

    def close(self) -> None:
        """End it in good order."""


@dataclass(frozen=True)
class Job:
    """One load or store that the mover was asked for."""

    chunks: frozenset[int]
    deadline_s: float  #: monotonic


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

    :param on_death: called when the mover can answer no more, before its jobs have ended
    """

    def __init__(
        self,
        start: Callable[[], MoverLink],
        job_deadline_s: float,
        on_death: Callable[[], None],
    ) -> None:
        self._start = start
        self._job_deadline_s = job_deadline_s
        self._on_death = on_death
        self._mover: MoverLink | None = start()
        self._dying: MoverLink | None = None
        self._jobs: dict[int, Job] = {}
        self._done: list[JobDone] = []
        self.deaths = 0

    @property
    def is_usable(self) -> bool:
        """Whether there is a mover to ask."""
        return self._mover is not None

    @property
    def has_work(self) -> bool:
        """Whether a job runs, has just ended, or waits for a dying mover."""
        return bool(self._jobs or self._done or self._dying)

    @property
    def has_jobs(self) -> bool:
        """Whether a job runs."""
        return bool(self._jobs)

    def tell(self, message: protocol.Message) -> None:
        """Send a message; without a mover it is dropped."""
        if self._mover is not None:
            self._mover.send(message)

    def begin(self, job_id: int, chunks: frozenset[int]) -> None:
        """Note a job that the mover is about to be asked for."""
        deadline_s = time.monotonic() + self._job_deadline_s
        self._jobs[job_id] = Job(chunks, deadline_s)

    def end(self, job_id: int) -> Job | None:
        """Take a job that the mover has answered; ``None`` if it was given up before."""
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
        answers = self._mover.poll() if self._mover is not None else []
        self._watch()
        return answers

    def close(self) -> None:
        """End the mover in good order."""
        if self._mover is not None:
            self._mover.close()

    def _watch(self) -> None:
        if self._dying is not None:
            if self._dying.is_gone():
                self._bury()
        elif self._mover is not None:
            now_s = time.monotonic()
            late = any(now_s > job.deadline_s for job in self._jobs.values())
            if late or not self._mover.is_connected():
                logger.error("sessiond: the mover %s", "hangs" if late else "has ended")
                self._mover.kill()
                self._dying, self._mover = self._mover, None
                self._on_death()

    def _bury(self) -> None:
        self._dying = None
        for job_id in self._jobs:
            self._done.append(JobDone(job_id, frozenset(), all_good=False))
        self._jobs.clear()
        self.deaths += 1
        if self.deaths <= MAX_DEATHS:
            self._mover = self._start()
        else:
            logger.error("sessiond: the mover died %d times; it stays away", self.deaths)
