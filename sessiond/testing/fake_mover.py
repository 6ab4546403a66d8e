"""A mover that answers what a test tells it to, and a clock that a test moves."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar
from unittest.mock import patch

from sessiond.connector import (
    arrivals,
    coordinator,
    loads,
    moverwatch,
    settlements,
    timing,
    turnbook,
)
from sessiond.connector.mover import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessiond.domain.reasons import Cause

M = TypeVar("M", bound=protocol.Message)


class FakeClock:
    """Stands in for the module ``time`` where the connector asks for it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        """Return the time of this clock."""
        return self.now_s

    def time(self) -> float:
        """Return it as Unix time."""
        return 1_800_000_000 + self.now_s

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now_s += seconds

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make the connector's decisions use this clock."""
        parts = (arrivals, coordinator, loads, moverwatch, settlements, timing, turnbook)
        with ExitStack() as patches:
            for part in parts:
                patches.enter_context(patch.object(part, "time", self))
            yield


class FakeMover:
    """One scripted mover, behind the same interface as a real one's client.

    :param dies_at_once: whether it is gone as soon as it is killed
    :param begins_at_once: whether it answers at the first poll that it has begun to work
    """

    def __init__(self, *, dies_at_once: bool = True, begins_at_once: bool = True) -> None:
        self.sent: list[protocol.Message] = []
        self.killed = False
        self.closed = False
        self.writes_heads = True
        self.gone = False
        self._dies_at_once = dies_at_once
        self._connected = True
        self._answers: deque[protocol.Message] = deque()
        if begins_at_once:
            self._answers.append(protocol.Ready())

    # As the coordinator sees it

    def send(self, message: protocol.Message) -> None:
        """Note what it was told; heads are written at once."""
        self.sent.append(message)
        if isinstance(message, protocol.WriteHead) and self.writes_heads:
            self._answers.append(protocol.HeadWritten(message.head_id))

    def poll(self) -> list[protocol.Message]:
        """Return the answers that the test gave."""
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def wait(self, timeout_s: float) -> None:
        """Return at once: its time is the test's."""

    def is_connected(self) -> bool:
        """Whether the test let it live."""
        return self._connected

    def kill(self) -> None:
        """Note it; it is gone at once, or when the test says so."""
        self.killed = True
        self._connected = False
        self.gone = self.gone or self._dies_at_once

    def is_gone(self) -> bool:
        """Whether it can touch the RAM tier no more."""
        return self.gone

    def close(self) -> None:
        """Note it."""
        self.closed = True

    # As the test drives it

    def told(self, kind: type[M]) -> list[M]:
        """Return the messages of one kind that it was sent."""
        return [message for message in self.sent if isinstance(message, kind)]

    def die(self) -> None:
        """Lose the connection."""
        self._connected = False

    def answer(self, message: protocol.Message) -> None:
        """Answer at the next poll."""
        self._answers.append(message)

    def open_load(self, chunks: int | Sequence[int], *causes: Cause) -> None:
        """Answer the newest :class:`OpenLoad`; *chunks*: numbers, or how many leading ones."""
        asked = self.told(protocol.OpenLoad)[-1]
        self.answer(protocol.LoadOpened(asked.plan_id, _numbers(chunks), _as_json(causes)))

    def end_load(self, *causes: Cause, failed: frozenset[int] = frozenset()) -> None:
        """Answer the newest :class:`Load`."""
        asked = self.told(protocol.Load)[-1]
        bad = sorted(failed)
        self.answer(protocol.LoadDone(asked.job_id, bad, _as_json(causes), 0.5, 700, 0.3, 0.1))

    def open_suspend(self, durable_chunks: int | Sequence[int] = 0, *causes: Cause) -> None:
        """Answer the newest :class:`OpenSuspend`; as :meth:`open_load`."""
        asked = self.told(protocol.OpenSuspend)[-1]
        durable = _numbers(durable_chunks)
        self.answer(protocol.SuspendOpened(asked.plan_id, durable, _as_json(causes)))

    def end_store(self, *causes: Cause) -> None:
        """Answer the newest :class:`Store`."""
        asked = self.told(protocol.Store)[-1]
        self.answer(protocol.StoreDone(asked.job_id, _as_json(causes)))

    def finish_suspend(self, *causes: Cause, committed: bool = True) -> None:
        """Answer the newest :class:`FinishSuspend`."""
        asked = self.told(protocol.FinishSuspend)[-1]
        snapshot = {"generation": 7, "tokens_restorable": 32} if committed else None
        self.answer(protocol.SuspendFinished(asked.plan_id, snapshot, _as_json(causes)))


class FakeMovers:
    """Starts fake movers and keeps them all, the newest last."""

    def __init__(self, *, die_at_once: bool = True) -> None:
        self.all: list[FakeMover] = []
        self.refuses = False
        self.write_heads = True  #: whether those to come write heads by themselves
        self._die_at_once = die_at_once

    def start(self) -> FakeMover:
        """Start one.

        :raises OSError: the test wants it
        """
        if self.refuses:
            raise OSError("no process can be started")
        self.all.append(FakeMover(dies_at_once=self._die_at_once))
        self.newest.writes_heads = self.write_heads
        return self.all[-1]

    @property
    def newest(self) -> FakeMover:
        """The one that was started last."""
        return self.all[-1]


def _numbers(chunks: int | Sequence[int]) -> list[int]:
    return list(range(chunks)) if isinstance(chunks, int) else list(chunks)


def _as_json(causes: tuple[Cause, ...]) -> list[dict[str, object]]:
    return [dict(cause.as_json()) for cause in causes]
