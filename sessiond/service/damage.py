"""Telling of damage: an event on each session that it concerns, and the metrics."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessionNotFoundError
from sessiond.domain.ids import SessionId, TenantId

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.service.context import Context
    from sessiond.store.findings import Fault, VerifyReport

_log = logging.getLogger(__name__)

#: Told faults that are remembered, so that none is told at every reading.
_MAX_REMEMBERED = 10_000


class DamageTeller:
    """Tells of each fault once in a daemon's life."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: set[Fault] = set()

    async def tell(self, report: VerifyReport) -> None:
        """Tell of what a verification has found.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        self._context.observer.verified(report.stored_bytes, report.damaged)
        for fault in report.faults:
            if fault.is_damage and fault not in self._told:
                await self._tell(fault)
                if len(self._told) >= _MAX_REMEMBERED:
                    self._told.clear()
                self._told.add(fault)

    async def _tell(self, fault: Fault) -> None:
        owner = fault.owner
        _log.warning("damaged %s in %s: %s", fault.what, fault.where, fault.why)
        if not owner.session:
            return
        # A session may be deleted meanwhile, or unknown to this registry.
        with suppress(SessionNotFoundError):
            await self._context.blocking(
                self._context.registry.add_event,
                TenantId(owner.tenant),
                SessionId(owner.session),
                "snapshot_damaged",
                self._context.now(),
                fault_json(fault),
            )


def fault_json(fault: Fault) -> dict[str, JsonValue]:
    """Return a fault without the tenant's name, for those who are the tenant."""
    values: dict[str, JsonValue] = asdict(fault)
    del values["owner"]
    return {
        **values,
        "session_id": fault.owner.session,
        "generations": list(fault.owner.generations),
    }
