"""Whether the snapshot tier works, why not, and what everybody is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sessiond.connector.attest import Attestor, TierState
from sessiond.connector.awaited import Awaited
from sessiond.connector.moverwatch import MoverWatch
from sessiond.connector.requests import TicketedRequest
from sessiond.connector.settlements import Settlements
from sessiond.domain.reasons import Cause, Reason

logger = logging.getLogger("vllm.sessiond.tier")


class TierSwitch:
    """Off while the engine's KV may not be that of its fingerprint, and while that is unknown.

    :param awaited: what the first mover waits for; ``None`` if it was started
    :ivar off: why nothing may be moved, though there may be a mover
    :ivar on_change: told of every change
    """

    def __init__(
        self, mover: MoverWatch, settlements: Settlements, awaited: Awaited | None
    ) -> None:
        self._mover = mover
        self._settlements = settlements
        self._awaited = awaited
        self._unsettled: Cause | None = None
        self.attestor = Attestor()
        self.on_change: Callable[[TierState], None] | None = None
        self.off: Cause | None = None

    @property
    def awaited(self) -> Awaited | None:
        """What the first mover waits for, as long as it does."""
        return self._awaited

    @property
    def hindrance(self) -> Cause | None:
        """Why nothing can be moved now."""
        return self.off or self._moverless

    @property
    def _moverless(self) -> Cause | None:
        if self._mover.is_usable:
            return None
        return self._awaited.pending if self._awaited else Cause(Reason.MOVER_FAILED)

    @property
    def lasting_hindrance(self) -> Cause | None:
        """Why no mover works, unless one is about to."""
        if self._mover.is_usable or self._mover.is_expected:
            return None
        return self.off or self._moverless

    def look(self) -> Cause | None:
        """Start the first mover as soon as that is possible; returns why it never will be."""
        found = self._awaited.look() if self._awaited is not None else None
        if found is None or self._awaited is None:
            return None
        self._unsettled, self._awaited = self._awaited.pending, None
        if not isinstance(found, Cause):
            self._mover.start(found)
            return None
        self.off = found  # whatever it was off for: no attestation helps any more
        self._unsettled = None
        return found

    def settle(self, *, works: bool) -> None:
        """Tell that the first mover works, once it does and has written the heads of before."""
        if self._unsettled is not None and works:
            self._unsettled = None
            self.tell()

    def turn_off(self, cause: Cause) -> None:
        """Let nothing be moved from now on."""
        if self.off is None:
            logger.warning("sessiond: the snapshot tier is off: %s", cause)
        self.off = self.off or cause  # first of all: what follows might fail
        self.tell()

    def attest(self, request: TicketedRequest) -> None:
        """Turn it on again if what an operator says holds; the settlement tells."""
        if request.ticket.operation_id in self._settlements:
            return
        causes = self.attestor.judge(request, self._moverless or self.off)
        if causes is None:
            return
        if not causes and self.off is not None:
            logger.warning("sessiond: the snapshot tier is on again: an operator attests")
            self.off = None
            self.tell()
        facts = {"tier_on": self.off is None}
        self._settlements.settle(request.ticket.operation_id, facts, causes)

    def tell(self) -> None:
        """Tell everybody whether it works."""
        if self.on_change is not None:
            pending = self._awaited.pending if self._awaited else self._unsettled
            self.on_change(self.attestor.state(self.off or pending))
