"""Who brings KV back right now: work that can wait lets it go first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sessiond.service.headwatch import has_turn, tells_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.heads import Head
    from sessiond.service.watch import GivenTicket, Key
    from sessiond.store.store import Store


#: Of so many, one that runs is found among the newest.
_MOST_DIRECT: Final = 1000


class Restores:
    """Counts what waits for KV to be brought back, or brings it back, in this daemon."""

    def __init__(self) -> None:
        self._running = 0
        self._direct: dict[Key, GivenTicket] = {}

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

    def expect(self, key: Key, turn: GivenTicket | None) -> None:
        """Take notice of a session's newest ticket, for a turn that its agent sends itself.

        :param turn: ``None``: it brings nothing back
        """
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
            if _is_over(turn, head, now_unix_s):
                if self._direct.get(key) is turn:
                    del self._direct[key]
            elif has_turn(head):
                return True
        return False


def _is_over(turn: GivenTicket, head: Head | None, now_unix_s: float) -> bool:
    """Whether a ticket's turn has ended, or cannot begin any more."""
    return tells_of(head, turn.turn_id) or (now_unix_s > turn.until_unix_s and not has_turn(head))
