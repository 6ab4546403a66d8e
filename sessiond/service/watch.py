"""The sessions that may have KV in an engine, so that no sweep needs to look at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.ids import SessionId, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = tuple[TenantId, SessionId]


class Watchlist:
    """Sessions to sweep.

    KV comes into an engine only through a ticket or a resume, and both are given by the daemon
    of the store's node; so it is enough to add a session then, and all of them at start.
    """

    def __init__(self) -> None:
        self._until_unix_s: dict[Key, float] = {}
        self._newest_tickets: dict[Key, str] = {}

    def add(self, key: Key, until_unix_s: float) -> None:
        """Watch a session at least until then, whatever the heads say."""
        known = self._until_unix_s.get(key, 0.0)
        self._until_unix_s[key] = max(known, until_unix_s)

    def expect_turn(self, key: Key, turn_id: str, until_unix_s: float) -> None:
        """Watch a session that has got a ticket, which is valid until then."""
        self.add(key, until_unix_s)
        self._newest_tickets[key] = turn_id

    def expected_turn(self, key: Key, now_unix_s: float) -> str | None:
        """Return the turn that the newest ticket of a session is for, unless it has expired."""
        return self._newest_tickets.get(key) if self.is_expected(key, now_unix_s) else None

    def is_expected(self, key: Key, now_unix_s: float) -> bool:
        """Whether somebody may still hold a valid ticket for a turn of the session."""
        return self.until_unix_s(key) > now_unix_s

    def until_unix_s(self, key: Key) -> float:
        """Return until when the session is watched at least; 0 if it is not."""
        return self._until_unix_s.get(key, 0.0)

    def drop(self, keys: Iterable[Key], now_unix_s: float) -> None:
        """Stop watching those whose time has passed."""
        for key in keys:
            if not self.is_expected(key, now_unix_s):
                self._until_unix_s.pop(key, None)
                self._newest_tickets.pop(key, None)

    def keys(self) -> list[Key]:
        """Return the watched sessions."""
        return list(self._until_unix_s)
