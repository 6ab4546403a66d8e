"""Making room: superseded snapshots first, then those of the least recently used sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sessiond.domain.retention import (
    Bounds,
    Candidate,
    Demand,
    Load,
    RemovalCause,
    SessionKey,
    Share,
    choose,
    demands,
    floor_bytes,
    superseded,
)
from sessiond.service.removal import Remover, wish_of
from sessiond.store.usage import DiskKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sessiond.domain.ids import SegmentId
    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.store.collector import CollectReport
    from sessiond.store.usage import SessionUsage, Usage

#: A session that turns out to be at work is left out of the next round.
_ROUNDS = 4


@dataclass(frozen=True)
class Shortage:
    """What could not be made free, with the figures that explain it."""

    demand: Demand
    short_bytes: int
    pinned_bytes: int  #: in snapshots of pinned sessions


@dataclass
class Removals:
    """What was taken away, and what that freed."""

    sessions: Counter[RemovalCause] = field(default_factory=Counter)
    bytes_freed: int = 0  #: of the file system
    segments_removed: int = 0
    frames_freed: int = 0
    segments_busy: int = 0  #: dead, but open somewhere, at the newest collection

    def collected(self, report: CollectReport) -> int:
        """Count what a collection did; return the bytes that it freed."""
        self.bytes_freed += report.bytes_freed
        self.segments_removed += report.segments_removed
        self.frames_freed += report.frames_freed
        self.segments_busy = report.segments_busy
        return report.bytes_freed


@dataclass
class Pressure:
    """What asks for room, and what one attempt to make it has learned."""

    coming: Mapping[str, int]  #: bytes that suspends are about to write, by tenant folder name
    spared: SessionKey | None = None  #: never taken
    partly: bool = True  #: evict even where that does not suffice
    once: Demand | None = None  #: a demand that the figures of the store do not show
    busy: set[SessionKey] = field(default_factory=set)
    freed_bytes: int = 0
    shortages: list[Shortage] = field(default_factory=list)

    def open_demands(self, load: Load, bounds: Bounds) -> list[Demand]:
        """Return what is still to be met, and was not given up."""
        found = demands(load, bounds, self.coming)
        if self.once and self.once.need_bytes > self.freed_bytes:
            need_bytes = self.once.need_bytes - self.freed_bytes
            found.append(replace(self.once, need_bytes=need_bytes))
        given_up = {(one.demand.cause, one.demand.tenant_name) for one in self.shortages}
        return [one for one in found if (one.cause, one.tenant_name) not in given_up]


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
            upkeep.collect(self._remover.remove(session, wish))

    def enforce(self, usage: Usage, pressure: Pressure, removals: Removals) -> Usage:
        """Evict until quotas, floor and *pressure* are met; what cannot be is told there.

        Returns what the store takes then.
        """
        for _ in range(_ROUNDS):
            found = pressure.open_demands(load_of(usage), self.bounds_of(usage))
            if not found:
                break
            if self._meet(usage, found[0], pressure, removals):
                usage = self.measure(removals)
        return usage

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
        record = self._context.store.read_session(*key)  # the registry lost it
        return record is not None and record.pinned

    def _used_unix_s(self, key: SessionKey, usage: SessionUsage, row: Session | None) -> float:
        turn_unix_s = self._context.store.upkeep.last_turn_unix_s(*key)
        known_unix_s = row.updated_unix_s if row else 0.0
        return max(turn_unix_s, known_unix_s, usage.newest_unix_s)

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
        taken = self._remover.take(wish)
        if taken is not None:
            removals.sessions[cause] += 1
        return taken

    def _superseded(self, usage: SessionUsage) -> list[int]:
        keep = self._context.limits.keep_generations
        return superseded(usage.generations, usage.readable, keep)


def load_of(usage: Usage) -> Load:
    """Return what counts for quotas: all but what is being written, which is told as coming."""
    total_bytes = usage.total_bytes - usage.by_kind.get(DiskKind.TMP, 0)
    return Load(usage.by_tenant, total_bytes, usage.space.free_bytes)


def _bytes_of(keys: Collection[SessionKey], shares: Iterable[Share]) -> int:
    return sum(share.size_bytes for share in shares if not share.owners.isdisjoint(keys))
