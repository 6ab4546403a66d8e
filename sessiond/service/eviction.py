"""Making room: superseded snapshots first, then those of the least recently used sessions."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreError
from sessiond.domain.retention import (
    Bounds,
    Candidate,
    Load,
    RemovalCause,
    choose,
    floor_bytes,
    superseded,
)
from sessiond.domain.tickets import CLOCK_SLACK_S
from sessiond.service.pressure import Shortage
from sessiond.service.removal import Remover, wish_of
from sessiond.store.usage import DiskKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.retention import Demand, SessionKey, Share
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.service.pressure import Pressure, Removals
    from sessiond.store.usage import SessionUsage, Usage

_log = logging.getLogger(__name__)

#: A session that turns out to be at work is left out of a demand's next round.
_ROUNDS = 4


class Evictor:
    """Removes snapshots. Synchronous; one caller at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._remover = Remover(context)

    def measure(self, removals: Removals) -> Usage:
        """Return what the store takes, after what has died was collected."""
        upkeep = self._context.store.upkeep
        usage = upkeep.usage()
        freed_bytes = removals.collected(upkeep.collect_changed())
        return upkeep.usage() if freed_bytes else usage

    def expire(self, usage: Usage, removals: Removals) -> None:
        """Remove the snapshots of sessions that were not used for their TTL."""
        now, default_ttl_s = self._context.now(), self._context.limits.ttl_s
        registry = self._context.registry
        unused = registry.unused_sessions(now, default_ttl_s)
        for session in registry.sessions_by_key([key for key in unused if key in usage.sessions]):
            key = (session.tenant, session.session_id)
            ttl_s = default_ttl_s if session.ttl_s is None else session.ttl_s
            if now - self._used_unix_s(key, usage.sessions[key], session) >= ttl_s:
                self._take(usage, key, RemovalCause.EXPIRED, removals)

    def prune(self, usage: Usage, removals: Removals, *, even_expected: bool = False) -> None:
        """Remove superseded generations.

        :param even_expected: also where a ticket that names one of them may still be valid.
        """
        now = self._context.now()
        for key, session in usage.sessions.items():
            if len(session.manifests) < 2:  # as almost all
                continue
            if even_expected or not self._context.watchlist.is_expected(key, now):
                self._take(usage, key, RemovalCause.SUPERSEDED, removals)

    def prune_held(self, session: Session) -> None:
        """Remove superseded generations of a session that the caller's operation holds."""
        key = (session.tenant, session.session_id)
        if self._context.watchlist.is_expected(key, self._context.now()):
            return
        usage = self._context.store.upkeep.session(*key)
        gone = self._superseded(usage)
        if gone:
            self._remover.remove(session, wish_of(key, usage, gone, RemovalCause.SUPERSEDED))

    def remove_held(self, session: Session, cause: RemovalCause) -> None:
        """Remove all snapshots of a session that the caller's operation holds."""
        key = (session.tenant, session.session_id)
        upkeep = self._context.store.upkeep
        usage = upkeep.session(*key)
        if usage.generations:
            wish = wish_of(key, usage, usage.generations, cause)
            upkeep.collect(self._remover.remove(session, wish) or ())

    def enforce(self, usage: Usage, pressure: Pressure, removals: Removals) -> Usage:
        """Evict until quotas, floor and *pressure* are met; what cannot be is told there.

        Returns what the store takes then.
        """
        rounds: Counter[tuple[RemovalCause, str]] = Counter()
        while True:
            found = [
                one
                for one in pressure.open_demands(load_of(usage), self.bounds_of(usage))
                if rounds[one.cause, one.tenant_name] < _ROUNDS
            ]
            if not found:
                return usage
            rounds[found[0].cause, found[0].tenant_name] += 1
            if self._meet(usage, found[0], pressure, removals):
                usage = self.measure(removals)

    def bounds_of(self, usage: Usage) -> Bounds:
        """Return the limits, on this file system."""
        limits = self._context.limits
        floor = floor_bytes(limits.free_space_floor_bytes, usage.space.total_bytes)
        return Bounds(limits.quota_tenant_bytes, limits.quota_total_bytes, floor)

    def _meet(self, usage: Usage, demand: Demand, pressure: Pressure, removals: Removals) -> bool:
        """Evict for one demand; return whether anything was removed."""
        sessions = {
            key: one
            for key, one in usage.sessions.items()
            if demand.tenant_name in ("", one.tenant_name)
        }
        pinned, candidates = self._candidates(sessions, usage.held, pressure)
        choice = choose(candidates, usage.shares, demand.need_bytes)
        if choice.short_bytes:
            pinned_bytes = _bytes_of(pinned, usage.shares)
            pressure.shortages.append(Shortage(demand, choice.short_bytes, pinned_bytes))
            if not pressure.partly:
                return False
        segments: set[SegmentId] = set()
        for key in choice.keys:
            taken = self._take(usage, key, demand.cause, removals)
            if taken is None:
                pressure.busy.add(key)
            else:
                segments |= taken
        collected = self._context.store.upkeep.collect(segments)
        pressure.freed_bytes += removals.collected(collected)
        return bool(choice.keys)

    def _candidates(
        self, sessions: Mapping[SessionKey, SessionUsage], held: Collection[str], run: Pressure
    ) -> tuple[set[SessionKey], list[Candidate]]:
        """Return which sessions are pinned, and what may be chosen of all."""
        known = {
            (row.tenant, row.session_id): row
            for row in self._context.registry.sessions_by_key(list(sessions))
        }
        pinned = {key for key in sessions if self._is_pinned(key, known.get(key))}
        never = pinned | run.busy | {run.spared}
        return pinned, [
            Candidate(
                key,
                self._used_unix_s(key, usage, known.get(key)),
                spared=key in never or usage.tenant_name in held,
            )
            for key, usage in sessions.items()
        ]

    def _is_pinned(self, key: SessionKey, row: Session | None) -> bool:
        if row is not None:
            return row.pinned
        try:
            record = self._context.store.read_session(*key)  # the registry lost it
        except StoreError:
            return True  # nobody can tell
        return record is not None and record.pinned

    def _used_unix_s(self, key: SessionKey, usage: SessionUsage, row: Session | None) -> float:
        turn_unix_s = self._context.store.upkeep.last_turn_unix_s(*key)
        known_unix_s = row.updated_unix_s if row else 0.0
        # Whoever has just got a ticket is about to load the snapshot that it names.
        ticket_s = self._context.limits.turn_ticket_s + CLOCK_SLACK_S
        asked_unix_s = self._context.watchlist.until_unix_s(key) - ticket_s
        return max(turn_unix_s, known_unix_s, asked_unix_s, usage.newest_unix_s)

    def _take(
        self, usage: Usage, key: SessionKey, cause: RemovalCause, removals: Removals
    ) -> frozenset[SegmentId] | None:
        session = usage.sessions[key]
        pruned = cause is RemovalCause.SUPERSEDED
        generations = self._superseded(session) if pruned else session.generations
        if not generations:
            return None
        wish = wish_of(key, session, generations, cause)
        if not pruned:
            wish = replace(wish, size_bytes=usage.exclusive_bytes.get(key, 0))
        try:
            taken = self._remover.take(wish)
        except StoreError as error:
            # One session's files must not keep all others from their turn.
            _log.warning("the snapshots of a session could not be removed: %s", error.message)
            removals.errors.append(error)
            return None
        if taken is not None:
            removals.sessions[cause] += 1
        return taken

    def _superseded(self, usage: SessionUsage) -> list[int]:
        keep = self._context.limits.keep_generations
        return superseded(usage.generations, usage.readable, keep)


def load_of(usage: Usage) -> Load:
    """Return what counts for quotas: all but what is being written, which is told as coming."""
    writing_bytes = usage.by_kind.get(DiskKind.TMP, 0)
    total_bytes = usage.total_bytes - writing_bytes
    return Load(usage.by_tenant, total_bytes, usage.space.free_bytes, writing_bytes)


def _bytes_of(keys: Collection[SessionKey], shares: Iterable[Share]) -> int:
    return sum(share.size_bytes for share in shares if not share.owners.isdisjoint(keys))
