"""Which heads are files: the mover writes them, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.connector.headbook import SessionKey
from sessiond.connector.mover import protocol
from sessiond.connector.mover.heads import message_of
from sessiond.connector.moverwatch import MoverWatch
from sessiond.domain.heads import Head
from sessiond.domain.reasons import Cause, Reason


class HeadFiles:
    """Has heads written, and knows which of them are."""

    def __init__(self, mover: MoverWatch) -> None:
        self._mover = mover
        self._newest = 0
        self._asked: dict[int, SessionKey] = {}  # by number, the oldest first
        self._failed: dict[SessionKey, Cause] = {}  # why the newest one of a session is no file
        self._begun_again = 0  # the newest number of those that a new mover was told at once

    @property
    def newest(self) -> int:
        """The number of the head that was asked for last."""
        return self._newest

    def failure(self, key: SessionKey | None) -> Cause | None:
        """Why the newest head of a session, or of any, is no file; ``None`` if it is."""
        if key is not None:
            return self._failed.get(key)
        return next(iter(self._failed.values()), None)

    @property
    def are_told_again(self) -> bool:
        """Whether there is a mover, and what was known before it was started is in files."""
        return self.are_files(self._begun_again)

    def write(self, head: Head) -> None:
        """Have a head written; without a mover it is not."""
        self._newest += 1
        if not self._mover.is_usable:
            return  # one to come is told all heads
        self._asked[self._newest] = head.tenant, head.session
        self._mover.ask(message_of(head, self._newest))

    def written(self, message: protocol.HeadWritten) -> None:
        """The mover has written a head, or could not."""
        if message.head_id not in self._asked:
            return  # an earlier mover's
        # It does one after the other: answers to those before this one were lost on the way.
        for number in [number for number in self._asked if number < message.head_id]:
            self._failed[self._asked.pop(number)] = Cause(Reason.INTERNAL_ERROR)
        key = self._asked.pop(message.head_id)
        if message.causes:
            self._failed[key] = Cause.from_json(message.causes[0])
        else:
            self._failed.pop(key, None)

    def try_again(self, head_of: Callable[[SessionKey], Head | None]) -> None:
        """Have those heads written again that could not be; one that is known no more is let go."""
        for key in self._failed.keys() - set(self._asked.values()):
            head = head_of(key)
            if head is None:
                del self._failed[key]
            else:
                self.write(head)

    def begin_again(self, heads: list[Head]) -> None:
        """Have all heads written by a new mover: nobody knows which of them are files."""
        self._asked.clear()
        self._failed.clear()
        for head in heads:
            self.write(head)
        self._begun_again = self._newest

    def are_files(self, number: int) -> bool:
        """Whether all that were asked for up to this one were written, or could not be."""
        oldest = next(iter(self._asked), None)
        due = max(number, self._begun_again)
        return self._mover.is_ready and (oldest is None or oldest > due)
