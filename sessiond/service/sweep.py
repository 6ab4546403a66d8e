"""The idle sweep: suspends sessions whose agents are away."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    OperationInProgressError,
    SessiondError,
    SessionNotFoundError,
    SuspendRefusedError,
    SuspendSkippedError,
    TurnInFlightError,
)
from sessiond.domain.reasons import Reason
from sessiond.domain.session import OperationStatus, SessionState
from sessiond.service import creation
from sessiond.service.reports import first_reason, lacks_only_gone, new_bytes
from sessiond.service.suspend_plans import SuspendBy
from sessiond.service.sweep_admission import Admission, Hold
from sessiond.service.sweep_ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.session import Operation
    from sessiond.domain.windows import SweepWindow
    from sessiond.service.catalogue import Catalogue, View
    from sessiond.service.context import Context
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations
    from sessiond.service.pauses import Pauses
    from sessiond.service.watch import Key
    from sessiond.service.worth import Worth

_log = logging.getLogger(__name__)

#: Somebody else is at the session: the next sweep looks again.
_BUSY = (TurnInFlightError, OperationInProgressError, SessionNotFoundError)
_IN_ENGINE = frozenset({SessionState.RUNNING, SessionState.ACTIVE})


class _End(StrEnum):
    SUSPENDED = "suspended"
    FAILED = "failed"
    LEFT = "left"  #: somebody else is at it, or was; or what was refused stays so
    REFUSED = "refused"  #: it is not worth its bytes


@dataclass(frozen=True)
class SweepReport:
    """What one sweep did."""

    watched: int
    due: int
    suspended: int
    failed: int
    windowed: int = 0  #: of those due, the ones that a window asked for
    yielded: int = 0  #: left for later, because resumes go first
    throttled: int = 0  #: left for later, because enough bytes were written
    paused: bool = False  #: none was suspended from then on
    window: str = ""  #: that the sweep was for
    refused: int = 0  #: not worth their bytes; each counts once for as long as the reason holds
    #: Codes of reasons, and for how many sessions each.
    refused_for: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Run:
    """One sweep; what holds one suspend holds the rest as well."""

    held: Hold | None = None
    is_spent: bool = False  #: whether the day's bytes are
    refused_for: Counter[str] = field(default_factory=Counter)


class Sweeper:
    """Looks at the watched sessions; a function of ``now`` that may run as often as it likes."""

    def __init__(  # noqa: PLR0913, PLR0917 - one for each part that it uses
        self,
        context: Context,
        catalogue: Catalogue,
        lifecycle: Lifecycle,
        operations: Operations,
        pauses: Pauses,
        worth: Worth,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._lifecycle = lifecycle
        self._operations = operations
        self._pauses = pauses
        self._worth = worth
        self._admission = Admission(context, pauses)
        self._ledger = Ledger(context)

    async def watch_all(self) -> int:
        """Watch every session of the store once, after a start; return how many.

        Creations that were cut off are finished.

        :raises StoreError: the store cannot be read.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        keys = await self._context.blocking(self._all_keys)
        for key in keys:
            self._context.watchlist.add(key, until_unix_s=0.0)
        return len(keys)

    async def sweep(self, window: SweepWindow | None = None) -> SweepReport:
        """Suspend what is idle now.

        :param window: has come: what has been idle for as long as it says is due as well, and
            stays due until it is suspended
        :raises RegistryUnavailableError: the registry does not answer.
        """
        now = self._context.now()
        views = await self._look(now)
        await self._let_go(now)
        run = _Run(Hold.PAUSED if await self._pauses.current() else None)
        if window and run.held is None:
            for view in views:
                self._ledger.owe(view, window.idle_s, now)
        due = [view for view in views if self._ledger.is_due(view, now)]
        windowed = sum(map(self._ledger.is_owed, due))
        ends = Counter(await asyncio.gather(*(self._visit(view, run) for view in due)))
        report = SweepReport(
            watched=len(views),
            due=len(due),
            suspended=ends[_End.SUSPENDED],
            failed=ends[_End.FAILED],
            windowed=windowed,
            yielded=ends[Hold.YIELDED],
            throttled=ends[Hold.THROTTLED],
            paused=run.held is Hold.PAUSED,
            window=window.name if window else "",
            refused=ends[_End.REFUSED],
            refused_for=dict(sorted(run.refused_for.items())),
        )
        self._context.observer.swept(report)
        return report

    async def _look(self, now_unix_s: float) -> Sequence[View]:
        """Return the watched sessions that are in an engine, and forget the others."""
        keys = self._context.watchlist.keys()
        seen = await self._views(keys)
        for view in seen:
            await self._catalogue.trail.note(view.session, view.presence)
        views = [view for view in seen if view.state in _IN_ENGINE]
        kept = {(view.session.tenant, view.session.session_id) for view in views}
        self._context.watchlist.drop((key for key in keys if key not in kept), now_unix_s)
        self._ledger.prune(set(self._context.watchlist.keys()), now_unix_s)
        return views

    async def _views(self, keys: Sequence[Key]) -> Sequence[View]:
        """Return those of the sessions that sweeps may touch: not pinned, not deleted."""
        sessions = await self._context.blocking(self._context.registry.sessions_for_sweep, keys)
        return await self._catalogue.views(tuple(sessions))

    async def _visit(self, view: View, run: _Run) -> _End | Hold:
        """Suspend the session when its turn comes, if it is still due then."""
        async with self._admission.places:
            if run.held or self._would_be_refused(view, run):
                return run.held or _End.LEFT
            try:
                held = await self._admission.hold()
                run.held = held or run.held
                return held or await self._suspend(view)
            except _BUSY:
                return _End.LEFT
            except SuspendRefusedError as error:
                return await self._refused(view, error, run)
            except SuspendSkippedError:
                self._ledger.leave(view)  # what was evicted will not come back
                return _End.LEFT
            except SessiondError as error:
                _log.warning("the sweep could not suspend a session: %s", error.message)
                self._ledger.postpone(view)
                return _End.FAILED

    async def _suspend(self, view: View) -> _End:
        session, began_s = view.session, monotonic()
        # It waited for its turn; somebody may have used, pinned or suspended it meanwhile.
        fresh = await self._views([(session.tenant, session.session_id)])
        if not fresh or not self._ledger.is_due(fresh[0], self._context.now()):
            return _End.LEFT
        key = session.tenant, session.session_id
        operation = await self._lifecycle.suspend(*key, by=SuspendBy.SWEEP)
        limits = self._context.limits
        wait_s = limits.suspend_deadline_s * limits.suspend_rounds
        operation = await self._operations.wait(operation, wait_s)
        return self._ended(fresh[0], operation, began_s)

    def _would_be_refused(self, view: View, run: _Run) -> bool:
        """Whether it would be once more, for bytes that others of this sweep have written."""
        spent = Reason.WRITE_BUDGET_SPENT
        if not run.is_spent or not self._ledger.was_refused(view, spent):
            return False
        self._ledger.postpone(view, spent)
        return True

    async def _refused(self, view: View, error: SuspendRefusedError, run: _Run) -> _End:
        """Look at it again later: chances, budgets and room change."""
        reason = first_reason(error.causes)
        self._ledger.postpone(view, reason)
        run.is_spent = run.is_spent or reason == Reason.WRITE_BUDGET_SPENT
        if not self._ledger.is_news(view, reason):
            return _End.LEFT
        run.refused_for[reason] += 1
        try:
            await self._worth.tell(view.session, error)
        except SessiondError as failure:
            _log.warning("a refused suspend left no trace in the registry: %s", failure.message)
        return _End.REFUSED

    def _ended(self, view: View, operation: Operation, began_s: float) -> _End:
        result = operation.result or {}
        if operation.status is not OperationStatus.SUCCEEDED:
            if result.get("code") == SuspendSkippedError.code:
                raise SuspendSkippedError
            self._try_again(view, is_gone=result.get("reason") == Reason.KV_EVICTED)
            return _End.FAILED
        self._admission.wrote(new_bytes(result), began_s)
        self._ledger.done(view)
        if result.get("missing_tokens"):
            self._try_again(view, is_gone=lacks_only_gone(result))
        return _End.SUSPENDED

    def _try_again(self, view: View, *, is_gone: bool) -> None:
        """Do so later, but not before the next turn where KV has gone: it will not come back."""
        if is_gone:
            self._ledger.leave(view)
        else:
            self._ledger.postpone(view)

    async def _let_go(self, now_unix_s: float) -> None:
        """Let what was refused for the day's bytes be due as soon as some may be written."""
        spent = Reason.WRITE_BUDGET_SPENT
        if self._ledger.is_waiting_for(spent) and await self._worth.has_budget():
            self._ledger.has_ended(spent, now_unix_s)

    def _all_keys(self) -> list[Key]:
        keys: list[Key] = []
        deleted: list[Key] = []
        for record in self._context.store.list_sessions():
            (deleted if record.is_tombstone else keys).append((record.tenant, record.session))
        creation.finish(self._context, deleted)  # here, where all files are read once
        return keys
