"""After a crash: give what was interrupted its true end, which the store knows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessiondError, SessionNotFoundError
from sessiond.domain.session import Operation, OperationKind, Session
from sessiond.service.fork import forked_json, tell_forked
from sessiond.service.ownership import erase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessiond.domain.ids import OperationId
    from sessiond.service.context import Context
    from sessiond.service.snapshots import Snapshots

_log = logging.getLogger(__name__)


class Recovery:
    """Settles operations whose daemon is gone; any number of daemons may run it."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots
        self._unread: dict[OperationId, Operation] = {}  # forks whose snapshot cannot be read now

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

        So are the ones of before whose snapshot could not be read then, if it can be now.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        expired = await self._context.blocking(
            self._context.registry.expire_operations, self._context.now()
        )
        unread = tuple(self._unread.values())
        for operation in expired:
            await self._try(self._settle, operation)
        for operation in unread:
            await self._try(self._settle_unread, operation)
        return len(expired)

    async def _try(self, settle: Callable[[Operation], Awaitable[None]], what: Operation) -> None:
        try:
            await settle(what)
        except SessionNotFoundError:
            self._unread.pop(what.operation_id, None)  # deleted meanwhile: nothing is left
        except SessiondError:
            # The store keeps the truth, and every later call reads it again.
            _log.exception("operation %s could not be settled", what.operation_id)

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
        if not await self._has_snapshot(fork):
            await self._context.blocking(erase, self._context, fork)
        elif not await self._tell_fork(fork, operation):
            # It may be whole, and the store out of order for now.
            self._unread[operation.operation_id] = operation
            _log.warning("the snapshot of fork %s cannot be read yet", fork.session_id)

    async def _settle_unread(self, operation: Operation) -> None:
        """Look again at a fork that was kept; nothing is removed any more, it may be in use."""
        get = self._context.registry.get_session
        fork = await self._context.blocking(get, operation.tenant, operation.session_id)
        if fork.created_unix_s <= operation.created_unix_s and await self._has_snapshot(fork):
            await self._snapshots.reconcile(fork)
            if not await self._tell_fork(fork, operation):
                return
        self._unread.pop(operation.operation_id, None)

    async def _has_snapshot(self, fork: Session) -> bool:
        generations = self._context.store.generations
        return bool(await self._context.blocking(generations, fork.tenant, fork.session_id))

    async def _tell_fork(self, fork: Session, operation: Operation) -> bool:
        """Let the operation of a fork have succeeded; return whether its snapshot can be read."""
        readable = await self._snapshots.newest_readable(fork)
        if readable.manifest is None:
            return False
        if readable.manifest.forked_from is not None:
            told = forked_json(readable.manifest, seconds=0.0)
            correct = self._context.registry.correct_operation
            await self._context.blocking(correct, operation.operation_id, told, self._context.now())
            await tell_forked(self._context, readable.manifest)
        return True
