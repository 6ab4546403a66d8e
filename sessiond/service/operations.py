"""Long calls: an operation row, a lease that is kept alive, and one end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.errors import OperationInProgressError, SessiondError
from sessiond.domain.ids import OperationId, SessionId, TenantId, new_operation_id
from sessiond.domain.session import OnEvicted, Operation, OperationKind, OperationStatus
from sessiond.service.reports import problem_of

if TYPE_CHECKING:
    from sessiond.domain.session import Session
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)

#: An operation begins so long after it has looked at what there is, at most.
_LOOK_S: Final = 5.0
#: How often it is tried to begin one where what was in the way ends before it is looked at.
_TRIES: Final = 3

Result = dict[str, JsonValue]
#: Does the work of an operation and returns its report.
Work = Callable[[], Awaitable[Result]]


class _LeaseLostError(Exception):
    """An operation is not this daemon's any more."""


@dataclass(frozen=True)
class Claim:
    """What an operation is to be, before it has begun."""

    tenant: TenantId
    session_id: SessionId
    kind: OperationKind
    operation_id: OperationId
    on_evicted: OnEvicted | None = None  #: of a suspend; only one that does the same is joined
    #: Of a suspend, when what it stores became that: one of something older is not joined.
    changed_unix_s: float = 0.0
    doubts: bool = False  #: whether there may be more than it knows of
    #: When the session was created that it was planned for: it begins for no later one of its id.
    planned_unix_s: float | None = None


def claim(tenant: TenantId, session_id: SessionId, kind: OperationKind) -> Claim:
    """Return a claim with a fresh operation id."""
    return Claim(tenant, session_id, kind, new_operation_id())


def begun(context: Context, wanted: Claim) -> Operation:
    """Return the row of an operation that this daemon begins now."""
    now = context.now()
    return Operation(
        operation_id=wanted.operation_id,
        tenant=wanted.tenant,
        session_id=wanted.session_id,
        kind=wanted.kind,
        status=OperationStatus.RUNNING,
        owner=context.owner,
        lease_until_unix_s=now + context.limits.lease_s,
        created_unix_s=now,
        finished_unix_s=None,
        result=None,
        on_evicted=wanted.on_evicted,
    )


class Operations:
    """Runs operations in the background, so that a client that hangs up ends none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks: dict[OperationId, asyncio.Task[None]] = {}
        self._claims: dict[OperationId, Claim] = {}  # of those, and of what begins

    async def start(self, wanted: Claim, work: Work, creates: Session | None = None) -> Operation:
        """Begin an operation, or join the one that does the same already.

        :param creates: the session that it fills, added with it; then none is joined
        :raises OperationInProgressError: one that does something else holds the session.
        :raises SessionNotFoundError: there is no such session.
        :raises SessionExistsError: there is one with the id of the one to add.
        """
        # Who gives up waiting must not leave an operation that nobody drives.
        return await asyncio.shield(asyncio.create_task(self._start(wanted, work, creates)))

    async def _start(self, wanted: Claim, work: Work, creates: Session | None) -> Operation:
        for _ in range(_TRIES):
            try:
                return await self._begin(wanted, work, creates)
            except OperationInProgressError:
                if creates is not None:
                    raise
            running = await self._running(wanted)
            if running is not None:
                return self._joined(running, wanted)
            # What was in the way has ended since: nothing keeps this one from beginning.
        raise OperationInProgressError

    async def _begin(self, wanted: Claim, work: Work, creates: Session | None) -> Operation:
        operation = begun(self._context, wanted)
        # Before its row: whoever finds that asks for this.
        self._claims[operation.operation_id] = wanted
        try:
            begin, planned_unix_s = self._context.registry.begin_operation, wanted.planned_unix_s
            await self._context.blocking(begin, operation, creates, planned_unix_s)
        except BaseException:
            self._forget(operation.operation_id)
            raise
        task = asyncio.create_task(self._drive(operation, work))
        self._tasks[operation.operation_id] = task
        task.add_done_callback(lambda _: self._forget(operation.operation_id))
        return operation

    def _forget(self, operation_id: OperationId) -> None:
        self._tasks.pop(operation_id, None)
        self._claims.pop(operation_id, None)

    @property
    def is_busy(self) -> bool:
        """Whether an operation runs in this daemon."""
        return bool(self._tasks)

    async def get(self, tenant: TenantId, operation_id: OperationId) -> Operation:
        """Return one operation as it is now.

        :raises OperationNotFoundError: the tenant has none with this id.
        """
        return await self._context.blocking(
            self._context.registry.get_operation, tenant, operation_id
        )

    def queue_position(self, operation: Operation) -> int | None:
        """Return how many resumes go before this one; ``None`` if it does not wait here."""
        if operation.status is not OperationStatus.RUNNING:
            return None
        return self._context.resume_queue.position((operation.tenant, operation.session_id))

    async def wait(self, operation: Operation, wait_s: float) -> Operation:
        """Return the operation when it has ended, or as it is after *wait_s*."""
        task = self._tasks.get(operation.operation_id)
        if task:
            await asyncio.wait((task,), timeout=wait_s)
            return await self.get(operation.tenant, operation.operation_id)
        deadline_s = monotonic() + wait_s
        while True:  # another daemon runs it: its row is all there is to watch
            operation = await self.get(operation.tenant, operation.operation_id)
            if operation.status is not OperationStatus.RUNNING or monotonic() >= deadline_s:
                return operation
            await asyncio.sleep(self._context.limits.poll_s)

    async def drain(self, wait_s: float) -> None:
        """Let running operations end; after *wait_s* they are cut off and left to recovery."""
        tasks = tuple(self._tasks.values())
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=wait_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _running(self, wanted: Claim) -> Operation | None:
        return await self._context.blocking(
            self._context.registry.running_operation,
            wanted.tenant,
            wanted.session_id,
            self._context.now(),
        )

    def _joined(self, running: Operation, wanted: Claim) -> Operation:
        if running.kind is not wanted.kind:
            raise OperationInProgressError
        if running.on_evicted is not wanted.on_evicted:
            other = running.on_evicted or "unknown"
            raise OperationInProgressError(f"A suspend whose 'on_evicted' is {other} runs already.")
        if not self._does_as_much(running, wanted):
            raise OperationInProgressError("A suspend of what was there before runs already.")
        return running

    def _does_as_much(self, running: Operation, wanted: Claim) -> bool:
        """Whether its report tells all that the wanted one would."""
        theirs = self._claims.get(running.operation_id)
        if theirs is None:
            # Another daemon's: it has looked at what there is some time before it began.
            looked_unix_s = running.created_unix_s - _LOOK_S
            return not wanted.doubts and wanted.changed_unix_s <= looked_unix_s
        if wanted.doubts and not theirs.doubts:
            return False
        return wanted.changed_unix_s <= theirs.changed_unix_s

    async def _drive(self, operation: Operation, work: Work) -> None:
        try:
            status, result = await self._ended(operation, work)
        except _LeaseLostError:
            # What it has begun in a thread may go on, so only who settles it knows its end.
            _log.warning("the lease of operation %s was lost", operation.operation_id)
            return
        try:
            await self._context.blocking(
                self._context.registry.finish_operation,
                operation.operation_id,
                operation.owner,
                status,
                result,
                self._context.now(),
            )
        except SessiondError:
            # The lease runs out and recovery finds the truth in the store.
            _log.exception("the end of operation %s was not recorded", operation.operation_id)

    async def _ended(self, operation: Operation, work: Work) -> tuple[OperationStatus, Result]:
        worker = asyncio.ensure_future(work())
        keeper = asyncio.create_task(self._keep_lease(operation))
        try:
            await asyncio.wait((worker, keeper), return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                worker.cancel()
                raise _LeaseLostError  # somebody else decides now
            return OperationStatus.SUCCEEDED, worker.result()
        except _LeaseLostError:
            raise
        except SessiondError as error:
            return OperationStatus.FAILED, problem_of(error)
        except Exception:  # noqa: BLE001 - a bug must end its operation, not leave it running
            _log.exception("operation %s failed", operation.operation_id)
            return OperationStatus.FAILED, problem_of(SessiondError())
        finally:
            for task in (worker, keeper):
                task.cancel()
            await asyncio.gather(worker, keeper, return_exceptions=True)

    async def _keep_lease(self, operation: Operation) -> None:
        """Renew the lease three times in its length; return when it is lost."""
        lease_s = self._context.limits.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            now = self._context.now()
            try:
                kept = await self._context.blocking(
                    self._context.registry.renew_lease,
                    operation.operation_id,
                    operation.owner,
                    now + lease_s,
                    now,
                )
            except SessiondError:
                _log.warning("the lease of %s could not be renewed", operation.operation_id)
                continue  # the database may be back before the lease runs out
            if not kept:
                return
