"""What the mover was asked and has not answered, and for how long it has worked on it.

The first answer is that it has begun to work. On a machine that is busy that takes seconds, and
has a limit of its own: until then, nothing that was asked is late.

The mover does what it is asked in four queues: heads, opening of snapshots, reads, and all that
belongs to suspends. So only the oldest question of a queue can be late; its time begins when it
becomes the oldest, and again whenever it makes progress. Those behind it wait their turn, and
what moves in another queue excuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sessiond.connector.mover import protocol

Question: TypeAlias = (
    protocol.WriteHead
    | protocol.OpenLoad
    | protocol.Load
    | protocol.OpenSuspend
    | protocol.Store
    | protocol.FinishSuspend
)
#: The answer's type and the id of its plan, job or head.
_Key: TypeAlias = tuple[type[protocol.Message], int]

_READY: _Key = (protocol.Ready, 0)
#: Python, its libraries and a compiler have to be read, perhaps by all movers of a machine at once.
START_DEADLINE_S = 300.0

_QUEUE_OF: Mapping[type[protocol.Message], str] = {
    protocol.Ready: "start",
    protocol.HeadWritten: "heads",
    protocol.LoadOpened: "opens",
    protocol.LoadDone: "reads",
    protocol.SuspendOpened: "writes",
    protocol.StoreDone: "writes",
    protocol.SuspendFinished: "writes",
}


@dataclass
class _Queue:
    waiting: dict[_Key, None] = field(default_factory=dict)  # oldest first
    since_s: float = 0.0  # when the oldest became that, or made progress

    @property
    def oldest(self) -> _Key | None:
        return next(iter(self.waiting), None)


class Questions:
    """The open questions; times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {name: _Queue() for name in _QUEUE_OF.values()}

    def __bool__(self) -> bool:
        """Whether an answer is due."""
        return any(queue.waiting for queue in self._queues.values())

    @property
    def await_start(self) -> bool:
        """Whether the mover has not begun to work."""
        return bool(self._queues[_QUEUE_OF[protocol.Ready]].waiting)

    def started(self, now_s: float) -> None:
        """Note that a mover was started, which will answer that it has begun to work."""
        self._wait_for(_READY, now_s)

    def ask(self, question: Question, now_s: float) -> None:
        """Note a question."""
        self._wait_for(_key_of_question(question), now_s)

    def note(self, message: protocol.Message, now_s: float) -> None:
        """Note an answer, or the progress of a job."""
        if isinstance(message, protocol.Progress):
            self._progress(message.job_id, now_s)
            return
        key = _key_of_answer(message)
        if key is None:
            return
        queue = self._queues[_QUEUE_OF[key[0]]]
        if key == _READY:
            for each in self._queues.values():
                each.since_s = now_s
        elif queue.oldest == key:
            queue.since_s = now_s
        queue.waiting.pop(key, None)

    def are_late(self, deadline_s: float, now_s: float) -> bool:
        """Whether one has been worked on for longer than *deadline_s* without progress, or the
        mover has not begun to work for longer than :data:`START_DEADLINE_S`.
        """
        starts = self._queues[_QUEUE_OF[protocol.Ready]]
        if starts.waiting:
            return now_s > starts.since_s + START_DEADLINE_S
        return any(
            queue.waiting and now_s > queue.since_s + deadline_s for queue in self._queues.values()
        )

    def clear(self) -> None:
        """Wait for none any more."""
        for queue in self._queues.values():
            queue.waiting.clear()

    def _wait_for(self, key: _Key, now_s: float) -> None:
        queue = self._queues[_QUEUE_OF[key[0]]]
        if not queue.waiting:
            queue.since_s = now_s
        queue.waiting[key] = None

    def _progress(self, job_id: int, now_s: float) -> None:
        for kind in (protocol.LoadDone, protocol.StoreDone):
            queue = self._queues[_QUEUE_OF[kind]]
            if queue.oldest == (kind, job_id):
                queue.since_s = now_s


def _key_of_question(question: Question) -> _Key:
    match question:
        case protocol.WriteHead(head_id=number):
            return protocol.HeadWritten, number
        case protocol.OpenLoad(plan_id=number):
            return protocol.LoadOpened, number
        case protocol.Load(job_id=number):
            return protocol.LoadDone, number
        case protocol.OpenSuspend(plan_id=number):
            return protocol.SuspendOpened, number
        case protocol.Store(job_id=number):
            return protocol.StoreDone, number
        case protocol.FinishSuspend(plan_id=number):
            return protocol.SuspendFinished, number


def _key_of_answer(message: protocol.Message) -> _Key | None:
    match message:
        case protocol.Ready():
            return _READY
        case (
            protocol.HeadWritten(head_id=number)
            | protocol.LoadDone(job_id=number)
            | protocol.StoreDone(job_id=number)
            | protocol.LoadOpened(plan_id=number)
            | protocol.SuspendOpened(plan_id=number)
            | protocol.SuspendFinished(plan_id=number)
        ):
            return type(message), number
    return None
