"""Attestation: an operator says that an engine's weights are those of its files again."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    AttestationRefusedError,
    EngineUnreachableError,
    IdentityPendingError,
)
from sessiond.domain.ids import SessionId
from sessiond.domain.reasons import EXPLANATIONS
from sessiond.domain.tickets import TicketOp
from sessiond.service.permits import Purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import TenantId
    from sessiond.domain.reasons import Cause
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)

_MOMENT_S = 0.1


@dataclass(frozen=True)
class Attestation:
    """The answer to an attestation."""

    engine: EngineInfo  #: as it is now
    was_off: str  #: why its snapshot tier was off; empty if it was on already
    seconds: float


class Attestations:
    """Turns snapshot tiers on again."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def attest(self, tenant: TenantId, engine_id: str) -> Attestation:
        """Have an engine turn its snapshot tier on again.

        The engine's caches are reset first: what it keeps from then on was computed after the
        operator's word. Requests that run begin anew. All steps together have one deadline.

        :raises EngineNotFoundError: there is no live engine of that id.
        :raises IdentityPendingError: it is not known yet whether the tier will be on.
        :raises AttestationRefusedError: the tier must stay off; the message says why.
        :raises UnavailableError: the engine does not answer, or cannot reset its caches.
        """
        began_s = monotonic()
        end_s = began_s + self._context.limits.attest_deadline_s
        before = await self._context.engines.get(engine_id)
        if not before.tier_off:
            return Attestation(before, "", monotonic() - began_s)
        if before.is_pending and before.tier_cause is not None:
            raise IdentityPendingError(causes=(before.tier_cause,))
        if not before.attestable:
            raise AttestationRefusedError(f"The tier is off for good: {before.tier_off}.")
        if not before.url:
            raise EngineUnreachableError(f"Engine {engine_id} did not tell its URL.")
        await self._attest(tenant, await self._reset(before, end_s), end_s)
        after = await self._seen(engine_id, end_s, lambda engine: not engine.tier_off)
        _log.warning(
            "tenant %s attests the weights of engine %s; its tier was off: %s",
            tenant,
            engine_id,
            before.tier_off,
        )
        return Attestation(after, before.tier_off, monotonic() - began_s)

    async def _reset(self, engine: EngineInfo, end_s: float) -> EngineInfo:
        while not await self._context.client.reset_caches(engine.url, _left_s(end_s)):
            if monotonic() >= end_s:
                raise AttestationRefusedError("Its caches cannot be reset: requests hold KV.")
            await asyncio.sleep(self._context.limits.poll_s)
        return await self._seen(engine.engine_id, end_s, lambda now: now.resets > engine.resets)

    async def _attest(self, tenant: TenantId, engine: EngineInfo, end_s: float) -> None:
        purpose = Purpose(tenant, SessionId(""), engine, engine.resets)
        request = self._context.signer.question(TicketOp.ATTEST, purpose, self._context.now())
        answer = await self._context.client.send(request, _left_s(end_s))
        if not answer.flag("tier_on"):
            raise AttestationRefusedError(_why(answer.causes))

    async def _seen(
        self, engine_id: str, end_s: float, has: Callable[[EngineInfo], bool]
    ) -> EngineInfo:
        """Return the engine when its file, which lags a moment behind, says what it must."""
        while True:
            engine = await self._context.engines.get(engine_id)
            if has(engine):
                return engine
            if monotonic() >= end_s:
                raise EngineUnreachableError("The engine's file does not tell what it did.")
            await asyncio.sleep(self._context.limits.poll_s)


def _left_s(end_s: float) -> float:
    """Return how much of the one deadline is left, for a call that gets a moment at least."""
    return max(_MOMENT_S, round(end_s - monotonic(), 1))


def _why(causes: Sequence[Cause]) -> str:
    for cause in causes:
        return f"{cause.detail or EXPLANATIONS[cause.reason].sentence.rstrip('.')}."
    return "The engine did not turn its tier on and told no cause."
