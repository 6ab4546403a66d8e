"""Who brings KV back right now: work that can wait lets it go first."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.heads import Head
    from sessiond.service.watch import Key
    from sessiond.store.store import Store


#: Of so many, one that runs is found among the newest.
_MOST_DIRECT: Final = 1000


@dataclass(frozen=True)
class DirectTurn:
    """A turn that an agent sends to its engine itself, with a ticket to load from disk."""

    engine_id: str
    turn_id: str
    until_unix_s: float  #: it may begin before that

    def is_over(self, head: Head | None, now_unix_s: float) -> bool:
        """Whether it has ended, or cannot begin any more."""
        if head is not None and head.last_turn and head.last_turn.turn_id == self.turn_id:
            return True
        return now_unix_s > self.until_unix_s and not _has_turn(head)


class Restores:
    """Counts what waits for KV to be brought back, or brings it back, in this daemon."""

    def __init__(self) -> None:
        self._running = 0
        self._direct: dict[Key, DirectTurn] = {}

    @property
    def are_running(self) -> bool:
        """Whether somebody waits for KV now, and this daemon sent the request."""
        return self._running > 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count one more as long as the context lasts."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def expect(self, key: Key, turn: DirectTurn | None) -> None:
        """Take notice of a session's newest ticket; ``None``: it brings nothing back."""
        self._direct.pop(key, None)
        if turn is not None:
            self._direct[key] = turn
            if len(self._direct) > _MOST_DIRECT:
                del self._direct[next(iter(self._direct))]  # the one that was told of first

    def direct_run(self, store: Store, now_unix_s: float) -> bool:
        """Whether a turn that should load runs in an engine, without us; blocks.

        The heads tell when such a turn begins and when it ends, not when its KV is there. Only
        those of sessions with such a ticket are looked at.

        :raises StoreError: the store cannot be read.
        """
        for key, turn in list(self._direct.items()):
            head = store.read_head(*key, turn.engine_id)
            if turn.is_over(head, now_unix_s):
                if self._direct.get(key) is turn:
                    del self._direct[key]
            elif _has_turn(head):
                return True
        return False


def _has_turn(head: Head | None) -> bool:
    return head is not None and head.turns_in_flight > 0
