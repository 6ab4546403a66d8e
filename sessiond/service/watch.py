"""The sessions that may have KV in an engine, so that no sweep needs to look at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.ids import SessionId, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = tuple[TenantId, SessionId]


@dataclass(frozen=True)
class GivenTicket:
    """A ticket for a turn, as who gave it remembers it."""

    engine_id: str
    turn_id: str
    given_unix_s: float
    until_unix_s: float  #: it may be used before that


class Watchlist:
    """Sessions to sweep.

    KV comes into an engine only through a ticket or a resume, and both are given by the daemon
    of the store's node; so it is enough to add a session then, and all of them at start.
    """

    def __init__(self) -> None:
        self._until_unix_s: dict[Key, float] = {}
        #: By engine id, the newest of each; the engine of the newest of all comes last.
        self._tickets: dict[Key, dict[str, GivenTicket]] = {}

    def add(self, key: Key, until_unix_s: float) -> None:
        """Watch a session at least until then, whatever the heads say."""
        known = self._until_unix_s.get(key, 0.0)
        self._until_unix_s[key] = max(known, until_unix_s)

    def expect_turn(self, key: Key, ticket: GivenTicket) -> None:
        """Watch a session that has got a ticket, as long as that is valid."""
        self.add(key, ticket.until_unix_s)
        valid = self._valid(key, ticket.given_unix_s)
        others = {name: other for name, other in valid.items() if name != ticket.engine_id}
        self._tickets[key] = {**others, ticket.engine_id: ticket}

    def tickets(self, key: Key, now_unix_s: float, since_unix_s: float = 0.0) -> list[GivenTicket]:
        """Return the newest valid ticket for each engine, used or not; the newest of all last.

        :param since_unix_s: when the session was made; earlier ones are for another of its id
        """
        valid = self._valid(key, now_unix_s).values()
        return [ticket for ticket in valid if ticket.given_unix_s >= since_unix_s]

    def _valid(self, key: Key, now_unix_s: float) -> dict[str, GivenTicket]:
        given = self._tickets.get(key, {})
        return {name: one for name, one in given.items() if one.until_unix_s > now_unix_s}

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
                self._tickets.pop(key, None)

    def keys(self) -> list[Key]:
        """Return the watched sessions."""
        return list(self._until_unix_s)
