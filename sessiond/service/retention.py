"""Retention: nothing is kept longer, and no more is kept, than was asked for."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sessiond.domain.errors import QuotaExceededError, StoreFullError
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.retention import Demand, RemovalCause, floor_bytes
from sessiond.service.eviction import Evictor, load_of
from sessiond.service.pressure import Need, Pressure, Removals, RetentionReport, Shortage
from sessiond.service.returns import give_up
from sessiond.service.upperbound import UpperBound
from sessiond.store.usage import DiskKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from sessiond.domain.retention import SessionKey
    from sessiond.service.context import Context
    from sessiond.store.usage import Usage

_EVICTING = frozenset(RemovalCause) - {RemovalCause.EXPIRED, RemovalCause.SUPERSEDED}
_QUOTAS = (RemovalCause.QUOTA_TENANT, RemovalCause.QUOTA_TOTAL)
_NAMES = {RemovalCause.QUOTA_TENANT: "the tenant's", RemovalCause.QUOTA_TOTAL: "the store's"}


class Retention:
    """Keeps a store within its limits; any number of daemons may do so at once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._evictor = Evictor(context)
        self._one_at_a_time = asyncio.Lock()
        self._coming: dict[SessionKey, int] = {}
        self._upper_bound = UpperBound()
        self._too_large: dict[SessionKey, int] = {}  #: tokens whose snapshot was over a quota
        self._full_collect_unix_s = 0.0

    async def run(self, *, full: bool = False) -> RetentionReport:
        """Expire, prune, evict and collect, as far as it is due now.

        :param full: look at every segment, not only at those that something has changed for.
        :raises StoreError: the store cannot be read.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        async with self._one_at_a_time:
            return await self._context.blocking(self._run, full)

    @asynccontextmanager
    async def room(self, need: Need) -> AsyncIterator[None]:
        """Make room for a suspend, and keep it for as long as this lasts.

        Quotas are met before a byte is written; where the file system's room is uncertain, the
        mover has the last word.

        :raises QuotaExceededError: what may be evicted does not suffice.
        """
        if need.size_bytes <= 0:
            yield
            return
        try:
            await self._reserve(need)
            yield
        finally:
            self._coming.pop(need.key, None)

    async def make_room(self, need: Need) -> None:
        """Evict for a suspend that found the store full.

        :raises StoreFullError: what may be evicted does not suffice; nothing was evicted.
        """
        async with self._one_at_a_time:
            await self._context.blocking(self._make_room, need)

    async def settle(self, need: Need, new_bytes: int) -> None:
        """Prune after a suspend, and meet the quotas with what it really wrote.

        :raises QuotaExceededError: its snapshot alone is over a quota, and was removed.
        """
        if not self._has_quota:
            await self._context.blocking(self._evictor.prune_held, need.session)
            return
        async with self._one_at_a_time:
            await self._context.blocking(self._settle, need, new_bytes)

    async def _reserve(self, need: Need) -> None:
        if need.tokens >= self._too_large.get(need.key, need.tokens + 1):
            raise QuotaExceededError("The session's snapshot was larger than the quota.")
        if not self._has_quota:
            self._coming[need.key] = need.size_bytes
            if await self._context.blocking(self._has_room):
                return  # without a look at the whole store, and without a wait for another's
            self._coming.pop(need.key, None)
        async with self._one_at_a_time:
            self._coming[need.key] = need.size_bytes
            await self._context.blocking(self._admit, need)

    def _run(self, full: bool) -> RetentionReport:  # noqa: FBT001 - called through a thread
        limits, store, removals = self._context.limits, self._context.store, Removals()
        now, coming = self._context.now(), self._coming_by_tenant()
        give_up(self._context)
        due = full or now - self._full_collect_unix_s >= limits.full_collect_s
        tmp_removed = store.sweep_tmp()
        usage = self._evictor.measure(removals)
        self._evictor.expire(usage, removals)
        self._evictor.prune(usage, removals)
        if removals.sessions:
            usage = self._evictor.measure(removals)
        usage = self._evictor.enforce(usage, Pressure(coming), removals)
        tombstones_removed = 0
        if due:
            removals.collected(store.collect())
            tombstones_removed = store.remove_tombstones(now - limits.tombstone_age_s)
            self._context.registry.remove_operations(now - limits.operations_age_s)
            self._full_collect_unix_s = now
            usage = store.upkeep.usage()
        self._show(usage, coming)
        if removals.errors:
            raise removals.errors[0]  # all others have had their turn
        return RetentionReport(
            expired=removals.sessions[RemovalCause.EXPIRED],
            pruned=removals.sessions[RemovalCause.SUPERSEDED],
            evicted=sum(count for cause, count in removals.sessions.items() if cause in _EVICTING),
            bytes_freed=removals.bytes_freed,
            segments_removed=removals.segments_removed,
            frames_freed=removals.frames_freed,
            segments_busy=removals.segments_busy,
            tenants_held=len(usage.held),
            tmp_removed=tmp_removed,
            tombstones_removed=tombstones_removed,
            store_bytes=usage.total_bytes,
            free_bytes=usage.space.free_bytes,
        )

    def _admit(self, need: Need) -> None:
        self._upper_bound.add(self._tenant_name(need), need.size_bytes)
        if self._is_surely_within(need) and self._has_room():
            return
        removals, coming = Removals(), self._coming_by_tenant()
        usage = self._evictor.measure(removals)
        pressure = self._pressure(need, coming, partly=False)
        self._show(self._evictor.enforce(usage, pressure, removals), coming)
        for shortage in pressure.shortages:
            if shortage.demand.cause is not RemovalCause.FREE_SPACE:  # there the mover decides
                raise QuotaExceededError(self._explained(need, shortage))

    def _make_room(self, need: Need) -> None:
        removals, coming = Removals(), self._coming_by_tenant()
        usage = self._evictor.measure(removals)
        self._evictor.prune(usage, removals, even_expected=True)
        if removals.sessions:
            usage = self._evictor.measure(removals)
        floor = self._evictor.bounds_of(usage).floor_bytes
        lacking_bytes = need.size_bytes + floor - usage.space.free_bytes
        # Where the figures tell of enough room, they cannot be believed (a user's disk quota and
        # missing inodes do not show in them): then anything that gets free may help.
        believed = lacking_bytes > 0
        once = Demand(RemovalCause.STORE_FULL, lacking_bytes if believed else need.size_bytes)
        pressure = self._pressure(need, {}, partly=not believed, once=once)
        self._show(self._evictor.enforce(usage, pressure, removals), coming)
        for shortage in pressure.shortages:
            helped = not believed and removals.bytes_freed
            if shortage.demand.cause is RemovalCause.STORE_FULL and not helped:
                raise StoreFullError(
                    f"There is no room: the snapshot needs up to {need.size_bytes} bytes, "
                    f"{usage.space.free_bytes} are free, of which {floor} stay free, and "
                    f"{shortage.unavailable}.",
                    causes=(Cause(Reason.STORE_FULL),),
                )

    def _settle(self, need: Need, new_bytes: int) -> None:
        self._evictor.prune_held(need.session)
        self._upper_bound.add(self._tenant_name(need), max(0, new_bytes - need.size_bytes))
        if self._is_surely_within(need):
            return
        removals, coming = Removals(), self._coming_by_tenant()
        usage = self._evictor.measure(removals)
        own_bytes = usage.exclusive_bytes.get(need.key, 0)
        limits = self._context.limits
        for cause, quota in zip(
            _QUOTAS, (limits.quota_tenant_bytes, limits.quota_total_bytes), strict=True
        ):
            if quota and own_bytes > quota:
                self._too_large[need.key] = need.tokens
                self._evictor.remove_held(need.session, cause)
                raise QuotaExceededError(
                    f"The session's snapshots take {own_bytes} bytes, more than {_NAMES[cause]} "
                    f"quota of {quota} bytes; they were removed."
                )
        pressure = self._pressure(need, coming)
        self._show(self._evictor.enforce(usage, pressure, removals), coming)

    def _pressure(
        self,
        need: Need,
        coming: Mapping[str, int],
        *,
        partly: bool = True,
        once: Demand | None = None,
    ) -> Pressure:
        """Return the pressure of a suspend, which no other tenant's quota concerns."""
        return Pressure(
            coming,
            spared=need.key,
            concerned=self._tenant_name(need),
            partly=partly,
            once=once,
        )

    def _tenant_name(self, need: Need) -> str:
        return self._context.store.keys.tenant_name(need.session.tenant)

    def _is_surely_within(self, need: Need) -> bool:
        return self._upper_bound.is_within(self._context.limits, self._tenant_name(need))

    @property
    def _has_quota(self) -> bool:
        limits = self._context.limits
        return bool(limits.quota_tenant_bytes or limits.quota_total_bytes)

    def _has_room(self) -> bool:
        space = self._context.store.upkeep.space()
        floor = floor_bytes(self._context.limits.free_space_floor_bytes, space.total_bytes)
        return space.free_bytes - sum(dict(self._coming).values()) >= floor

    def _coming_by_tenant(self) -> dict[str, int]:
        coming: dict[str, int] = {}
        for (tenant, _), size_bytes in dict(self._coming).items():
            name = self._context.store.keys.tenant_name(tenant)
            coming[name] = coming.get(name, 0) + size_bytes
        return coming

    def _explained(self, need: Need, shortage: Shortage) -> str:
        cause, limits = shortage.demand.cause, self._context.limits
        tenant = cause is RemovalCause.QUOTA_TENANT
        quota = limits.quota_tenant_bytes if tenant else limits.quota_total_bytes
        text = f"The snapshot needs up to {need.size_bytes} bytes"
        if need.size_bytes > quota:
            return f"{text}, more than {_NAMES[cause]} quota of {quota} bytes."
        return (
            f"{text}; {shortage.short_bytes} of them do not fit {_NAMES[cause]} quota of {quota} "
            f"bytes, and {shortage.unavailable}."
        )

    def _show(self, usage: Usage, coming: Mapping[str, int]) -> None:
        """Tell of a look; *coming* is of before it, since what has ended may not be in it."""
        self._upper_bound.looked(load_of(usage), coming)
        by_kind = {kind.value: usage.by_kind.get(kind, 0) for kind in DiskKind}
        self._context.observer.measured(by_kind, usage.space.free_bytes)
