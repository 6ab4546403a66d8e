"""Which heads are files: the mover writes them, one after the other."""

from __future__ import annotations

import itertools

from sessiond.connector.headbook import SessionKey
from sessiond.connector.mover import protocol
from sessiond.connector.mover.heads import message_of
from sessiond.connector.moverwatch import MoverWatch
from sessiond.domain.heads import Head


class HeadFiles:
    """Has heads written, and knows which of them are."""

    def __init__(self, mover: MoverWatch) -> None:
        self._mover = mover
        self._numbers = itertools.count(1)
        self._newest = 0
        self._asked: dict[int, SessionKey] = {}  # by number, the oldest first
        self._failed: dict[SessionKey, str] = {}  # why the newest one of a session is no file
        self._begun_again = 0  # the newest number of those that a new mover was told at once

    @property
    def newest(self) -> int:
        """The number of the head that was asked for last."""
        return self._newest

    @property
    def failed(self) -> dict[SessionKey, str]:
        """Why the newest head of a session could not be written, for all that could not be."""
        return dict(self._failed)

    @property
    def are_told_again(self) -> bool:
        """Whether there is a mover, and what was known before it was started is in files."""
        return self.are_files(self._begun_again)

    def write(self, head: Head) -> None:
        """Have a head written; without a mover it is not."""
        self._newest = next(self._numbers)
        key = head.tenant, head.session
        self._failed.pop(key, None)
        self._asked[self._newest] = key
        self._mover.ask(message_of(head, self._newest))

    def written(self, message: protocol.HeadWritten) -> None:
        """The mover has written a head, or could not."""
        key = self._asked.pop(message.head_id, None)
        if key is not None and message.failure and key not in self._asked.values():
            self._failed[key] = message.failure

    def begin_again(self, heads: list[Head]) -> None:
        """Have all heads written by a new mover: nobody knows which of them are files."""
        self._asked.clear()
        for head in heads:
            self.write(head)
        self._begun_again = self._newest

    def are_files(self, number: int) -> bool:
        """Whether all that were asked for up to this one were written, or could not be."""
        oldest = next(iter(self._asked), None)
        due = max(number, self._begun_again)
        return self._mover.is_ready and (oldest is None or oldest > due)
