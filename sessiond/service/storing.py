"""A suspend within the store's limits: room first, and once more where the disk was full."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import QuotaExceededError, SessiondError, StoreFullError
from sessiond.domain.reasons import Cause, Reason
from sessiond.service.pressure import Need

if TYPE_CHECKING:
    from sessiond.domain.outcomes import SuspendReport
    from sessiond.service.context import Context
    from sessiond.service.retention import Retention
    from sessiond.service.suspend import Suspender
    from sessiond.service.suspend_plans import Plan

_log = logging.getLogger(__name__)

#: Of a frame, header and index: what a chunk takes beyond its payload, at most.
_CHUNK_EXTRA_BYTES = 4096
_SEGMENT_EXTRA_BYTES = 4 * 4096
_TOKEN_BYTES = 4
#: One snapshot compresses a little worse than another.
_MARGIN = 1.05


class Storing:
    """Performs suspends for which there is room, or can be made."""

    def __init__(self, context: Context, suspender: Suspender, retention: Retention) -> None:
        self._context = context
        self._suspender = suspender
        self._retention = retention

    async def perform(self, plan: Plan) -> SuspendReport:
        """Store what was planned.

        :raises QuotaExceededError: a quota does not allow it; nothing was written, or kept.
        :raises StoreFullError: the store is full, and nothing could be evicted.
        :raises SessiondError: nothing could be stored, or the engine was lost.
        """
        need = need_of(plan)
        async with self._retention.room(need):
            report = await self._perform(plan)
        if report.rounds:
            await self._settle(need, report.snapshot.new_bytes)
        return report

    async def _settle(self, need: Need, new_bytes: int) -> None:
        try:
            await self._retention.settle(need, new_bytes)
        except QuotaExceededError:
            raise
        except SessiondError:
            # What was stored is stored; the next run of retention does the rest.
            _log.exception("what a suspend has made superfluous could not be removed")

    async def _perform(self, plan: Plan) -> SuspendReport:
        """Repeat a suspend that found the store full, exactly once, after evicting."""
        try:
            report = await self._suspender.perform(plan)
        except StoreFullError:
            report = None
        if report is not None and not _found_full(report):
            return report
        try:
            again = await self._suspender.plan(plan.session, plan.on_evicted)
            await self._retention.make_room(need_of(again))
            return await self._suspender.perform(again)
        except SessiondError as error:
            if report is None:
                raise
            # The first attempt has stored a part, which stays.
            return _explained(report, error) if isinstance(error, StoreFullError) else report


def need_of(plan: Plan) -> Need:
    """Return what a suspend writes, at most."""
    source = plan.source
    if source is None or plan.kept_tokens >= source.tokens:
        return Need(plan.session, 0, 0)
    engine = source.located.engine
    chunks = -(-(source.tokens - plan.kept_tokens) // engine.chunk_tokens)
    payload_bytes = int(chunks * engine.chunk_bytes * _ratio(plan))
    extra_bytes = chunks * _CHUNK_EXTRA_BYTES + _SEGMENT_EXTRA_BYTES
    head_bytes = len(source.branch.tokens) * _TOKEN_BYTES
    return Need(plan.session, payload_bytes + extra_bytes + head_bytes, source.tokens)


def _ratio(plan: Plan) -> float:
    """Return how well the session's KV compresses, by its newest snapshot; 1 without one."""
    newest = plan.newest
    if newest is None or not newest.raw_bytes:
        return 1.0
    return min(1.0, _MARGIN * newest.stored_bytes / newest.raw_bytes)


def _found_full(report: SuspendReport) -> bool:
    # Where nothing is missing, it was a head that could not be written.
    full = any(cause.reason is Reason.STORE_FULL for cause in report.causes)
    return full and report.missing_tokens > 0


def _explained(report: SuspendReport, error: StoreFullError) -> SuspendReport:
    full = Cause(Reason.STORE_FULL, detail=error.message)
    causes = tuple(full if cause.reason is Reason.STORE_FULL else cause for cause in report.causes)
    return replace(report, causes=causes)
