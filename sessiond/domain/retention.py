"""What has to go when snapshots take too much room: a pure rule.

Sessions may share frames, so what a removal frees depends on what was removed before it. A
:class:`Share` therefore names all sessions that keep some bytes alive; the bytes are free when
the last of these is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from sessiond.domain.ids import SessionId, TenantId

#: Names a session of a store.
SessionKey: TypeAlias = tuple[TenantId, SessionId]

_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_PARTS = 50  #: two percent


class RemovalCause(StrEnum):
    """Why retention removed snapshots."""

    QUOTA_TENANT = "quota_tenant"  #: the tenant's snapshots took more than its quota
    QUOTA_TOTAL = "quota_total"  #: all snapshots together took more than theirs
    FREE_SPACE = "free_space"  #: the file system had less free than its floor
    STORE_FULL = "store_full"  #: a suspend found no room
    EXPIRED = "expired"  #: the session was not used for its TTL
    SUPERSEDED = "superseded"  #: a newer generation is there


@dataclass(frozen=True)
class Candidate:
    """A session with snapshots, as far as retention needs to know it."""

    key: SessionKey
    used_unix_s: float
    #: Pinned, at work, or unable to give room: never chosen.
    spared: bool = False


@dataclass(frozen=True)
class Share:
    """Bytes on disk, and all sessions whose snapshots keep them there."""

    owners: frozenset[SessionKey]
    size_bytes: int


@dataclass(frozen=True)
class Choice:
    """Which sessions are to lose their snapshots, the least recently used first."""

    keys: tuple[SessionKey, ...]
    freed_bytes: int  #: by all of them together
    short_bytes: int  #: what was asked for and cannot be freed; 0 where it can


def choose(candidates: Iterable[Candidate], shares: Collection[Share], need_bytes: int) -> Choice:
    """Choose what to remove so that *need_bytes* get free, the least recently used first.

    There is no age below which a session is safe. One whose removal frees nothing is passed
    over. Where there is not enough, all that frees something is chosen, and ``short_bytes``
    says how much is missing.
    """
    ledger = _Ledger(shares)
    order = sorted(
        (one for one in candidates if not one.spared), key=lambda one: (one.used_unix_s, one.key)
    )
    taken: list[SessionKey] = []
    for candidate in order:
        if ledger.freed_bytes >= need_bytes:
            break
        ledger.remove(candidate.key)
        taken.append(candidate.key)
    useful = _without_useless(taken, shares)
    return Choice(useful, ledger.freed_bytes, max(0, need_bytes - ledger.freed_bytes))


def exclusive_bytes(shares: Iterable[Share]) -> dict[SessionKey, int]:
    """Return the bytes that only one session keeps alive, by session."""
    found: dict[SessionKey, int] = defaultdict(int)
    for share in shares:
        if len(share.owners) == 1:
            (owner,) = share.owners
            found[owner] += share.size_bytes
    return dict(found)


def superseded(generations: Sequence[int], readable: Collection[int], keep: int) -> list[int]:
    """Return the generations that are not needed any more, of those given in ascending order.

    The newest *keep* readable ones stay, and so do newer ones that cannot be read: what they
    are is for a verification to say. Without a readable one nothing goes.
    """
    kept = [number for number in generations if number in readable][-keep:]
    return [number for number in generations if kept and number < kept[0]]


def floor_bytes(configured: int | None, file_system_bytes: int) -> int:
    """Return how much of the file system stays free; ``None``: 2 % of it, at most 1 GiB."""
    if configured is not None:
        return configured
    return min(_DEFAULT_FLOOR_BYTES, file_system_bytes // _DEFAULT_FLOOR_PARTS)


@dataclass(frozen=True)
class Bounds:
    """How much snapshots may take; 0 means as much as there is."""

    tenant_bytes: int = 0
    total_bytes: int = 0
    floor_bytes: int = 0  #: of the file system, to stay free


@dataclass(frozen=True)
class Load:
    """What snapshots take, or are about to."""

    by_tenant: Mapping[str, int]
    total_bytes: int
    free_bytes: int  #: of the file system
    writing_bytes: int = 0  #: what suspends have written so far: of what is coming, not free


@dataclass(frozen=True)
class Demand:
    """Bytes that have to get free."""

    cause: RemovalCause
    need_bytes: int
    tenant_name: str = ""  #: only this tenant's snapshots help; empty: all do


def demands(load: Load, bounds: Bounds, coming: Mapping[str, int]) -> list[Demand]:
    """Return what has to get free, the narrowest first.

    :param coming: bytes that suspends are about to write, by tenant.
    """
    found = []
    for name in sorted(load.by_tenant.keys() | coming.keys()) if bounds.tenant_bytes else ():
        over_bytes = load.by_tenant.get(name, 0) + coming.get(name, 0) - bounds.tenant_bytes
        found.append(Demand(RemovalCause.QUOTA_TENANT, over_bytes, name))
    all_coming_bytes = sum(coming.values())
    if bounds.total_bytes:
        over_bytes = load.total_bytes + all_coming_bytes - bounds.total_bytes
        found.append(Demand(RemovalCause.QUOTA_TOTAL, over_bytes))
    unwritten_bytes = max(0, all_coming_bytes - load.writing_bytes)
    lacking_bytes = bounds.floor_bytes + unwritten_bytes - load.free_bytes
    found.append(Demand(RemovalCause.FREE_SPACE, lacking_bytes))
    return [demand for demand in found if demand.need_bytes > 0]


class _Ledger:
    """Counts what is free after some sessions are gone."""

    def __init__(self, shares: Iterable[Share]) -> None:
        self.freed_bytes = 0
        self._of_owner: dict[SessionKey, list[int]] = defaultdict(list)
        self._left: list[int] = []
        self._sizes: list[int] = []
        for place, share in enumerate(shares):
            self._left.append(len(share.owners))
            self._sizes.append(share.size_bytes)
            for owner in share.owners:
                self._of_owner[owner].append(place)

    def remove(self, key: SessionKey) -> None:
        for place in self._of_owner.pop(key, ()):
            self._left[place] -= 1
            if self._left[place] == 0:
                self.freed_bytes += self._sizes[place]


def _without_useless(taken: list[SessionKey], shares: Iterable[Share]) -> tuple[SessionKey, ...]:
    """Leave out the sessions that have no part in any bytes that get free."""
    gone = set(taken)
    useful: set[SessionKey] = set()
    for share in shares:
        if share.size_bytes and share.owners <= gone:
            useful |= share.owners
    return tuple(key for key in taken if key in useful)
