"""What asks for room, what was done about it, and what is still missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sessiond.domain.retention import demands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.errors import StoreError
    from sessiond.domain.retention import Bounds, Demand, Load, RemovalCause, SessionKey
    from sessiond.domain.session import Session
    from sessiond.store.collector import CollectReport


@dataclass(frozen=True)
class Need:
    """What a suspend is about to write."""

    session: Session
    size_bytes: int  #: at most
    tokens: int  #: of the whole snapshot

    @property
    def key(self) -> SessionKey:
        """The session."""
        return self.session.tenant, self.session.session_id


@dataclass(frozen=True)
class Shortage:
    """What could not be made free, with the figures that explain it."""

    demand: Demand
    short_bytes: int
    pinned_bytes: int  #: in snapshots of pinned sessions

    @property
    def unavailable(self) -> str:
        """Why no more can be made free, in words for the tenant that asks."""
        if not self.pinned_bytes:
            return "nothing else can be removed"
        # How much others have pinned is not the caller's business.
        own = f" ({self.pinned_bytes} bytes)" if self.demand.tenant_name else ""
        return f"only pinned sessions{own} and ones at work are left"


@dataclass
class Removals:
    """What was taken away, and what that freed."""

    sessions: Counter[RemovalCause] = field(default_factory=Counter)
    bytes_freed: int = 0  #: of the file system
    segments_removed: int = 0
    frames_freed: int = 0
    segments_busy: int = 0  #: dead, but open somewhere, at the newest collection
    errors: list[StoreError] = field(default_factory=list)  #: sessions whose files resisted

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
    concerned: str = ""  #: folder name of the tenant whose quota counts; empty: those of all do
    partly: bool = True  #: evict even where that does not suffice
    once: Demand | None = None  #: a demand that the figures of the store do not show
    busy: set[SessionKey] = field(default_factory=set)
    freed_bytes: int = 0
    shortages: list[Shortage] = field(default_factory=list)

    def open_demands(self, load: Load, bounds: Bounds) -> list[Demand]:
        """Return what is still to be met, and was not given up."""
        found = [
            one
            for one in demands(load, bounds, self.coming)
            if not self.concerned or one.tenant_name in ("", self.concerned)
        ]
        if self.once and self.once.need_bytes > self.freed_bytes:
            need_bytes = self.once.need_bytes - self.freed_bytes
            found.append(replace(self.once, need_bytes=need_bytes))
        given_up = {(one.demand.cause, one.demand.tenant_name) for one in self.shortages}
        return [one for one in found if (one.cause, one.tenant_name) not in given_up]


@dataclass(frozen=True)
class RetentionReport:
    """What one run did."""

    expired: int  #: sessions that lost their snapshots to their TTL
    pruned: int  #: sessions that lost superseded generations
    evicted: int  #: sessions that lost their snapshots to a quota or the free-space floor
    bytes_freed: int  #: of the file system
    segments_removed: int
    frames_freed: int
    segments_busy: int  #: dead, but open somewhere; a later run frees them
    tenants_held: int  #: nothing of theirs can be freed, because a manifest is unreadable
    tmp_removed: int
    tombstones_removed: int
    store_bytes: int  #: afterwards
    free_bytes: int  #: of the file system, afterwards
