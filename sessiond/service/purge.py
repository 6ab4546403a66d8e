"""Purge: delete all sessions of a tenant that match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import OperationInProgressError, SessionNotFoundError
from sessiond.domain.session import OperationStatus, Session

if TYPE_CHECKING:
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.service.catalogue import Wanted
    from sessiond.service.context import Context
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations

_PAGE = 200
_DELETE_WAIT_S = 60.0


@dataclass(frozen=True)
class PurgeReport:
    """What a purge deleted, or would delete."""

    matched: int
    deleted: int
    failed: int
    session_ids: tuple[SessionId, ...]  #: those that matched


class Purger:
    """Deletes by filter."""

    def __init__(self, context: Context, lifecycle: Lifecycle, operations: Operations) -> None:
        self._context = context
        self._lifecycle = lifecycle
        self._operations = operations

    async def purge(self, tenant: TenantId, wanted: Wanted, *, dry_run: bool) -> PurgeReport:
        """Delete what matches; pinned sessions only if *wanted* asks for pinned ones."""
        matched = await self._context.blocking(self._matching, tenant, wanted)
        deleted = failed = 0
        for session in () if dry_run else matched:
            if await self._delete(session):
                deleted += 1
            else:
                failed += 1
        return PurgeReport(
            len(matched), deleted, failed, tuple(session.session_id for session in matched)
        )

    async def _delete(self, session: Session) -> bool:
        try:
            operation = await self._lifecycle.delete(session.tenant, session.session_id)
        except SessionNotFoundError:
            return True
        except OperationInProgressError:
            return False
        ended = await self._operations.wait(operation, _DELETE_WAIT_S)
        return ended.status is OperationStatus.SUCCEEDED

    def _matching(self, tenant: TenantId, wanted: Wanted) -> list[Session]:
        matched: list[Session] = []
        after: str | None = None
        while True:
            page = self._context.registry.list_sessions(
                tenant,
                model=wanted.model,
                has_snapshot=wanted.has_snapshot,
                pinned=bool(wanted.pinned),
                after=after,
                limit=_PAGE,
            )
            matched += page.sessions
            after = page.next_after
            if after is None:
                return matched
