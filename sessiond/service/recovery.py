"""After a crash: give what was interrupted its true end, which the store knows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessiondError, SessionNotFoundError
from sessiond.domain.session import Operation, OperationKind, Session
from sessiond.service.fork import forked_json, tell_forked
from sessiond.service.ownership import erase

if TYPE_CHECKING:
    from sessiond.service.context import Context
    from sessiond.service.snapshots import Snapshots

_log = logging.getLogger(__name__)


class Recovery:
    """Settles operations whose daemon is gone; any number of daemons may run it."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots

    async def tidy(self) -> None:
        """Remove what dead writers and dead engines left in the store; done at start.

        A file that names shared memory is left to the next engine, which frees that first.

        :raises StoreError: the store cannot be read or written.
        """
        store = self._context.store
        await self._context.blocking(store.sweep_tmp)
        await self._context.blocking(store.remove_dead_engines, keep_sharing=True)

    async def recover(self) -> int:
        """Settle all operations whose lease has run out; return how many.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        expired = await self._context.blocking(
            self._context.registry.expire_operations, self._context.now()
        )
        for operation in expired:
            try:
                await self._settle(operation)
            except SessionNotFoundError:
                continue  # deleted meanwhile: nothing is left to settle
            except SessiondError:
                # The store keeps the truth, and every later call reads it again.
                _log.exception("operation %s could not be settled", operation.operation_id)
        return len(expired)

    async def _settle(self, operation: Operation) -> None:
        tenant, session_id = operation.tenant, operation.session_id
        registry = self._context.registry
        session = await self._context.blocking(
            registry.get_session, tenant, session_id, include_deleted=True
        )
        recorded = 0
        if session.created_unix_s > operation.created_unix_s:
            return  # the id was given to a new session since
        if operation.kind is OperationKind.DELETE:
            await self._context.blocking(erase, self._context, session)
        elif not session.deleted:
            recorded = await self._snapshots.reconcile(session)
            if operation.kind is OperationKind.FORK:
                await self._settle_fork(session, operation)
        await self._context.blocking(
            registry.add_event,
            tenant,
            session_id,
            "recovered",
            self._context.now(),
            {
                "operation_id": operation.operation_id,
                "kind": operation.kind.value,
                "snapshots_found": recorded,
            },
        )

    async def _settle_fork(self, fork: Session, operation: Operation) -> None:
        """Keep a fork whose snapshot was committed; one without is none, and goes."""
        readable = await self._snapshots.newest_readable(fork)
        if readable.manifest is None:
            await self._context.blocking(erase, self._context, fork)
        elif readable.manifest.forked_from is not None:
            told = forked_json(readable.manifest, seconds=0.0)
            correct = self._context.registry.correct_operation
            await self._context.blocking(correct, operation.operation_id, told, self._context.now())
            await tell_forked(self._context, readable.manifest)
