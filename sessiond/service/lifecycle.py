"""Suspend, resume and delete, as operations with a trail."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Unpack

from sessiond.domain.errors import (
    SessiondError,
    StoreError,
    SuspendRefusedError,
    SuspendSkippedError,
)
from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.outcomes import Outcome
from sessiond.domain.session import OnEvicted, Operation, OperationKind, Session
from sessiond.service import returns
from sessiond.service.deletion import delete
from sessiond.service.endings import tell_end, tell_failure
from sessiond.service.lostkv import drop_old_heads, with_lost
from sessiond.service.once import Once
from sessiond.service.operations import Claim, Operations, Result, Work, claim
from sessiond.service.reports import (
    first_reason,
    problem_of,
    resume_json,
    suspend_json,
)
from sessiond.service.restoring import Restorer
from sessiond.service.resume import Prospect, Resumer
from sessiond.service.storing import Storing
from sessiond.service.suspend import Suspender
from sessiond.service.suspend_plans import Plan, SuspendBy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessiond.registry import SessionChanges
    from sessiond.service.catalogue import Catalogue
    from sessiond.service.context import Context
    from sessiond.service.plans import Planner, Wish
    from sessiond.service.retention import Retention
    from sessiond.service.snapshots import Snapshots
    from sessiond.service.worth import Worth

_log = logging.getLogger(__name__)

#: What an operation is to be, and its work.
_Begun = tuple[Claim, Work]


class Lifecycle:
    """Starts the long calls. Each returns the operation, which runs on by itself.

    *key*, a client's idempotency key, makes a repeated call return the first one's operation.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one for each part that it uses
        self,
        context: Context,
        snapshots: Snapshots,
        catalogue: Catalogue,
        operations: Operations,
        retention: Retention,
        planner: Planner,
        worth: Worth,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._resumer = Resumer(context, snapshots)
        self._restorer = Restorer(context, planner)
        self._suspender = Suspender(context, snapshots, self._resumer, self._restorer)
        self._storing = Storing(context, self._suspender, retention)
        self._worth = worth
        self._operations = operations

    async def suspend(
        self,
        tenant: TenantId,
        session_id: SessionId,
        key: str = "",
        on_evicted: OnEvicted | None = None,
        *,
        by: SuspendBy = SuspendBy.CLIENT,
    ) -> Operation:
        """Store the session's KV.

        :param on_evicted: what to do about evicted KV; by default what the session is set to.
            A suspend that runs already is joined only if it does the same.
        :param by: whoever asks for it
        :raises SuspendRefusedError: it is not worth being written now.
        :raises SessionNotFoundError: there is no such session.
        :raises TurnInFlightError: a turn is running.
        :raises NothingToSuspendError: there is no whole chunk of KV.
        :raises NotTextError: the newest turn is more than text.
        :raises AdapterUnprovenError: it is not proven which adapter computed the KV.
        :raises TierOffError: the engine keeps nothing.
        :raises UnavailableError: no engine runs, and there is no snapshot either.
        :raises OperationInProgressError: an operation of another kind holds the session, or a
            suspend that does something else about evicted KV, or began before the newest turn.
        """
        wanted = claim(tenant, session_id, OperationKind.SUSPEND)

        async def begin() -> _Begun:
            session = await self._catalogue.get(tenant, session_id)
            asks = by is SuspendBy.CLIENT
            plan = await self._suspender.plan(session, on_evicted, asks=asks)
            await self._note_turn(session)
            await self._worth.check(plan, by_sweep=by is SuspendBy.SWEEP)
            return plan.claim(wanted), partial(self._suspend, plan)

        return await self._once(wanted, key, begin, on_evicted)

    async def resume(
        self, tenant: TenantId, session_id: SessionId, key: str = "", wish: Wish | None = None
    ) -> Operation:
        """Bring the session's KV back.

        :param wish: how to decide between loading and computing; by default as the session says.
            A resume that runs already is joined whatever it was asked for.
        :raises SessionNotFoundError: there is no such session.
        :raises UnavailableError: no engine can; the session stays as it is.
        :raises OperationInProgressError: an operation of another kind holds the session.
        """
        wanted = claim(tenant, session_id, OperationKind.RESUME)

        async def begin() -> _Begun:
            session = await self._catalogue.get(tenant, session_id)
            prospect = await self._resumer.look(session)
            await self._note_turn(session)
            planned = replace(wanted, planned_unix_s=session.created_unix_s)
            return planned, partial(self._resume, prospect, wish)

        return await self._once(wanted, key, begin, wish.text if wish else None)

    async def delete(self, tenant: TenantId, session_id: SessionId, key: str = "") -> Operation:
        """Delete the session and its bytes; an interrupted delete may be repeated.

        :raises SessionNotFoundError: there never was such a session.
        :raises OperationInProgressError: an operation of another kind holds the session.
        """
        wanted = claim(tenant, session_id, OperationKind.DELETE)

        async def begin() -> _Begun:
            return wanted, partial(delete, self._context, wanted, self._note_turn)

        return await self._once(wanted, key, begin)

    async def _once(
        self,
        wanted: Claim,
        key: str,
        begin: Callable[[], Awaitable[_Begun]],
        option: str | None = None,
    ) -> Operation:
        """Start the operation, or return the one that the key stands for.

        :param option: of the call; a key is for one
        """

        async def start() -> Operation:
            return await self._operations.start(*await self._begun(wanted.kind, begin))

        if not key:
            return await start()
        request = [wanted.kind.value, wanted.session_id, *([option] if option else [])]
        return await Once(self._context, wanted.tenant, key, request).operation(wanted, start)

    async def _begun(self, kind: OperationKind, begin: Callable[[], Awaitable[_Begun]]) -> _Begun:
        try:
            return await begin()
        except SuspendRefusedError:
            raise  # and counted, where it is written down
        except SessiondError as error:
            self._context.observer.explained(kind, error.causes)
            raise

    async def _note_turn(self, session: Session) -> None:
        """Write the newest turn down; its head tells of it even where its KV is gone."""
        located = await self._context.engines.locate(session)
        await self._catalogue.trail.note(session, located.head if located else None)

    async def _suspend(self, plan: Plan) -> Result:
        session = plan.session
        try:
            report = await self._storing.perform(plan)
            report = with_lost(report, await self._resumer.lost(session))
            await self._update(session, resumed_on="", away_unix_s=self._context.now())
        except SessiondError as error:
            await self._failed(session, OperationKind.SUSPEND, error)
            raise
        result = suspend_json(report)
        outcome = "partial" if report.missing_tokens else "complete"
        tell_end(self._context, session, OperationKind.SUSPEND, outcome, report)
        await self._event(session, "suspended", result)
        with suppress(StoreError):  # the next one does it
            await self._context.blocking(drop_old_heads, self._context.store, session)
        return result

    async def _resume(self, prospect: Prospect, wish: Wish | None) -> Result:
        session = prospect.session
        try:
            # A newer snapshot may have been committed before this held the session.
            prospect = await self._resumer.look_again(prospect)
            with self._context.restores.running():
                report = await self._restorer.perform(prospect, wish)
            await self._update(
                session,
                resumed_on=report.engine_id if report.tokens_restored else "",
                last_outcome=report.outcome.value,
                last_reason=first_reason(report.causes),
            )
            used = partial(returns.used, disk_tokens=report.disk_tokens)
            await self._context.blocking(used, self._context, session)
        except SessiondError as error:
            await self._failed(session, OperationKind.RESUME, error)
            raise
        self._context.watchlist.add((session.tenant, session.session_id), self._context.now())
        result = resume_json(report)
        outcome = report.outcome.value
        tell_end(self._context, session, OperationKind.RESUME, outcome, report)
        await self._event(session, "resumed", result)
        return result

    async def _failed(self, session: Session, kind: OperationKind, error: SessiondError) -> None:
        """Leave a trace of a failure, which the caller raises."""
        ending = "skipped" if isinstance(error, SuspendSkippedError) else Outcome.FAILED.value
        tell_failure(self._context, session, kind, ending, error)
        try:
            if kind is OperationKind.RESUME:
                await self._update(
                    session, last_outcome=Outcome.FAILED.value, last_reason=error.code
                )
            await self._event(session, f"{kind.value}_{ending}", problem_of(error))
        except SessiondError:
            _log.exception("a failed %s left no trace in the registry", kind.value)

    async def _update(self, session: Session, **changes: Unpack[SessionChanges]) -> None:
        changes["updated_unix_s"] = self._context.now()
        await self._context.blocking(
            self._context.registry.update_session,
            session.tenant,
            session.session_id,
            session.created_unix_s,
            **changes,
        )

    async def _event(self, session: Session, kind: str, detail: Result) -> None:
        await self._context.blocking(
            self._context.registry.add_event,
            session.tenant,
            session.session_id,
            kind,
            self._context.now(),
            detail,
            session.created_unix_s,
        )
