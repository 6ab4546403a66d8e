"""One drain: suspends what an engine has, round by round, until nothing is left or time is up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

from sessiond.domain.drains import AtRisk, DrainReport, Saved, Unsaved, most_valuable_first
from sessiond.domain.errors import (
    DeadlineExceededError,
    EngineNotFoundError,
    SessiondError,
    TurnInFlightError,
)
from sessiond.domain.reasons import EXPLANATIONS, Cause, Reason
from sessiond.domain.session import OperationStatus
from sessiond.service.drain_failures import Failures
from sessiond.service.suspend_plans import SuspendBy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessiond.service.context import Context
    from sessiond.service.drain_scan import Checks, DrainScan, Found
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations, Result
    from sessiond.service.watch import Key

#: Between two looks at what is left, while some are being stored: times the period of polls.
_LOOKS = 4
_NOT_REACHED = "Time was up before it was stored."
_STILL_RUNNING = "It was still being stored when time was up."
_GONE = "The engine lost its KV before it was stored, as by a reset of its caches."


class DrainRun:
    """Empties one engine. :meth:`report` tells how far it is, at any time."""

    def __init__(
        self,
        context: Context,
        lifecycle: Lifecycle,
        operations: Operations,
        scan: DrainScan,
        checks: Checks,
    ) -> None:
        self._context, self._lifecycle, self._operations = context, lifecycle, operations
        self._scan, self._engine_id, self._checks = scan, scan.engine_id, checks
        self._began_s = monotonic()
        self.end_s = self._began_s  #: on the monotonic clock; may be put off while it runs
        self.looked = asyncio.Event()  #: set when the engine's sessions are known, or never will be
        self._left: list[AtRisk] = []
        self._saved: dict[Key, Saved] = {}
        self._lost: dict[Key, AtRisk] = {}
        self._failures = Failures()
        self._at_work: dict[Key, asyncio.Task[None]] = {}
        self._since: dict[Key, int] = {}  # the newest generation when it was found
        self._begun: set[Key] = set()  # their suspend has told of no success
        self._heard_of: set[Key] = set()  # since the look that goes on
        self._doubt: Cause | None = None  # as of the newest look everywhere
        self._settled_at: int | None = None  # turns sent before all was known that was not at work
        self._is_done = self._engine_ended = False

    async def run(self) -> None:
        """Suspend until nothing is left that can be stored, or the end has come.

        :raises SessiondError: the store or the registry cannot be read.
        """
        try:
            await self._run()
        except EngineNotFoundError:
            self._engine_ended = True
            while self._at_work and monotonic() < self.end_s:
                await self._wait_for_one(self.end_s - monotonic())  # it may be stored all the same
        finally:
            for task in self._at_work.values():
                task.cancel()  # the suspend itself goes on to its end

    def report(self) -> DrainReport:
        """Return what was stored, and what was not and why."""
        missing = {**self._lost, **{one.key: one for one in self._left}}
        order = most_valuable_first(missing.values(), self._context.now())
        return DrainReport(
            engine_id=self._engine_id,
            complete=self._is_done and not missing,
            saved=tuple(one for one in self._saved.values() if one.key not in missing),
            unsaved=tuple(map(self._unsaved, order)),
            seconds=monotonic() - self._began_s,
            causes=self._doubts(missing),
        )

    def _doubts(self, missing: Mapping[Key, AtRisk]) -> tuple[Cause, ...]:
        if self._is_done or (missing and self._doubt is None):
            return ()
        return (self._doubt or Cause(Reason.HEAD_UNCONFIRMED),)

    async def _run(self) -> None:
        await self._look(self._scan.everywhere)
        self.looked.set()
        while await self._goes_on() and not self._is_done:
            await self._step()

    async def _goes_on(self) -> bool:
        return monotonic() < self.end_s and await self._checks.is_wanted()

    async def _step(self) -> None:
        due = [one for one in self._left if self._is_free(one) and self._failures.is_due(one)]
        if due or self._at_work:
            await self._store_all(most_valuable_first(due, self._context.now()))
        elif any(map(self._failures.is_waiting, self._left)):
            self._settled_at = None  # other turns may end meanwhile
            await asyncio.sleep(self._context.limits.poll_s)
        elif self._settled_at == self._checks.sent():
            self._is_done = True
            return
        else:
            await self._settle()
            return
        await self._look_again()

    async def _store_all(self, order: list[AtRisk]) -> None:
        """Begin to store all of them, some at a time; do not wait long for the last ones."""
        self._settled_at = None
        for one in order:
            while len(self._at_work) >= max(1, self._context.limits.sweep_concurrency):
                await self._wait_for_one(min(self._pause_s, self.end_s - monotonic()))
                if not await self._goes_on():
                    return
            self._at_work[one.key] = asyncio.create_task(self._store(one))
        # One that hangs must not keep those waiting whose turn has ended meanwhile.
        await self._wait_for_one(self._pause_s)

    @property
    def _pause_s(self) -> float:
        return _LOOKS * self._context.limits.poll_s

    async def _wait_for_one(self, wait_s: float) -> None:
        tasks = self._at_work.values()
        await asyncio.wait(tasks, timeout=max(0.0, wait_s), return_when=asyncio.FIRST_COMPLETED)
        ended = [key for key, task in self._at_work.items() if task.done()]
        for key in ended:
            self._at_work.pop(key).result()

    async def _settle(self) -> None:
        """Look everywhere once more, when the engine has written down all that has ended there.

        The first look may have come before a turn's head; and where no other engine serves, turns
        may have begun since.
        """
        if self._doubt is not None:
            await asyncio.sleep(self._context.limits.poll_s)
        sent = self._checks.sent()
        self._doubt = await self._checks.doubt()
        await self._look(self._scan.everywhere)
        self._settled_at = sent if self._doubt is None else None

    async def _look_again(self) -> None:
        await self._look(partial(self._scan.among, [one.key for one in self._left]))

    async def _look(self, look: Callable[[], Found]) -> None:
        self._heard_of.clear()
        found = await self._context.blocking(look)
        # Of a dead engine nothing is found: what was known of it before is what is lost.
        if not await self._context.blocking(self._context.store.engine_is_live, self._engine_id):
            raise EngineNotFoundError
        for one in found.at_risk:
            self._since.setdefault(one.key, one.generation)
            self._lost.pop(one.key, None)
        await self._find_stored()
        # The look may have been before what was heard of while it went on.
        heard = [one for one in self._left if one.key in self._heard_of]
        for one in self._left:
            if one.key not in self._heard_of:
                self._note_end(one, found)
        self._left = [one for one in found.at_risk if one.key not in self._heard_of] + heard

    def _note_end(self, one: AtRisk, found: Found) -> None:
        """Note what became of a session that was at risk, if it is not any more."""
        if one.key in found.stored:
            self._saved[one.key] = found.stored[one.key]
        elif one.key in found.gone:
            snapshot, tokens = found.gone[one.key], one.tokens
            if snapshot and snapshot.generation > one.generation:
                self._saved[one.key] = snapshot
                tokens = one.kept_tokens + one.tokens - snapshot.tokens
            if tokens > 0:
                self._lost[one.key] = replace(one, tokens=tokens)

    async def _find_stored(self) -> None:
        """Find what is stored though its suspend failed, as where the lease was lost after it."""
        if not self._begun:
            return
        since = {key: self._since[key] for key in self._begun}
        for one in await self._context.blocking(self._scan.stored, since):
            if one.key in self._begun:  # else its own answer came meanwhile
                self._saved[one.key] = one

    async def _store(self, one: AtRisk) -> None:
        try:
            suspend = partial(self._lifecycle.suspend, by=SuspendBy.DRAIN)
            operation = await suspend(one.tenant, one.session_id)
            self._begun.add(one.key)
            left_s = max(0.0, self.end_s - monotonic())
            operation = await self._operations.wait(operation, left_s)
        except SessiondError as error:
            self._failures.note(one, error.code, error.message, retryable=error.retryable)
            return
        told = operation.result or {}
        if operation.status is OperationStatus.RUNNING:
            self._failures.note(one, DeadlineExceededError.code, _STILL_RUNNING, retryable=True)
        elif operation.status is OperationStatus.FAILED:
            code, detail = str(told.get("code")), str(told.get("message"))
            self._failures.note(one, code, detail, retryable=bool(told.get("retryable")))
        else:
            self._stored(one, told)

    def _stored(self, one: AtRisk, told: Result) -> None:
        self._begun.discard(one.key)
        self._heard_of.add(one.key)
        snapshot = cast("Result", told["snapshot"])
        tokens = cast("int", snapshot["tokens_restorable"])
        generation = cast("int", snapshot["generation"])
        self._saved[one.key] = Saved(one.tenant, one.session_id, generation, tokens)
        lacking = cast("int", told["missing_tokens"])
        missing = replace(one, tokens=lacking, generation=generation, kept_tokens=tokens)
        others = [other for other in self._left if other.key != one.key]
        self._left = [*others, missing] if missing.tokens else others
        # Heard of only if something is missing, or a look finds that it is.
        causes = cast("list[Result]", told["causes"])
        reason = Reason(str(causes[0]["reason"])) if causes else Reason.NOT_CONFIRMED
        self._failures.note(one, reason.value, EXPLANATIONS[reason].sentence, retryable=False)

    def _is_free(self, one: AtRisk) -> bool:
        return one.key not in self._at_work

    def _unsaved(self, one: AtRisk) -> Unsaved:
        failure, saved = self._failures.of(one), self._saved.get(one.key)
        code, detail = DeadlineExceededError.code, _NOT_REACHED
        if one.key in self._lost:
            code, detail = Reason.KV_EVICTED.value, _GONE
        elif one.busy:
            code, detail = TurnInFlightError.code, TurnInFlightError().message
        elif failure is not None:
            code, detail = failure.code, failure.detail
        elif self._engine_ended:
            code, detail = EngineNotFoundError.code, "The engine ended before it was stored."
        tokens = saved.tokens if saved else 0
        return Unsaved(one.tenant, one.session_id, code, detail, one.tokens, tokens)
