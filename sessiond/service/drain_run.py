"""One drain: suspends what an engine has, round by round, until nothing is left or time is up."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
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
from sessiond.domain.reasons import EXPLANATIONS, Reason
from sessiond.domain.session import OperationStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.service.context import Context
    from sessiond.service.drain_scan import DrainScan
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations, Result
    from sessiond.service.watch import Key

#: Between two tries of what may be repeated; doubles up to the second.
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0
#: Between two looks at what is left, while some are being stored: times the period of polls.
_LOOKS = 4
_NOT_REACHED = "Time was up before it was stored."
_STILL_RUNNING = "It was still being stored when time was up."


@dataclass(frozen=True)
class _Failure:
    """Why a session was not stored, or not all of it, as of its last turn."""

    code: str
    detail: str
    used_unix_s: float
    wait_s: float  #: until it is tried again; infinite: never
    due_s: float  #: on the monotonic clock

    def is_about(self, one: AtRisk) -> bool:
        return self.used_unix_s == one.used_unix_s


class DrainRun:
    """Empties one engine. :meth:`report` tells how far it is, at any time."""

    def __init__(
        self,
        context: Context,
        lifecycle: Lifecycle,
        operations: Operations,
        scan: DrainScan,
        engine_id: str,
    ) -> None:
        self._context, self._lifecycle, self._operations = context, lifecycle, operations
        self._scan, self._engine_id = scan, engine_id
        self._began_s = monotonic()
        self.end_s = self._began_s  #: on the monotonic clock; may be put off while it runs
        self.looked = asyncio.Event()  #: set when the engine's sessions are known, or never will be
        self._left: list[AtRisk] = []
        self._saved: dict[Key, Saved] = {}
        self._failures: dict[Key, _Failure] = {}
        self._at_work: dict[Key, asyncio.Task[None]] = {}
        self._since: dict[Key, int] = {}  # the newest generation when it was found
        self._begun: set[Key] = set()  # their suspend has told of no success
        self._heard_of: set[Key] = set()  # since the look that goes on
        self._looked_everywhere = self._is_done = self._engine_ended = False

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
        left = most_valuable_first(self._left, self._context.now())
        return DrainReport(
            engine_id=self._engine_id,
            complete=self._is_done and not left,
            saved=tuple(self._saved.values()),
            unsaved=tuple(map(self._unsaved, left)),
            seconds=monotonic() - self._began_s,
        )

    async def _run(self) -> None:
        await self._look_everywhere()
        self.looked.set()
        while monotonic() < self.end_s and not self._is_done:
            await self._step()

    async def _step(self) -> None:
        due = [one for one in self._left if self._is_due(one)]
        if due or self._at_work:
            await self._store_all(most_valuable_first(due, self._context.now()))
        elif any(self._is_waiting(one) for one in self._left):
            await asyncio.sleep(self._context.limits.poll_s)
        elif self._looked_everywhere:
            self._is_done = True
            return
        else:
            # Where no other engine serves, turns may have begun since the first look.
            await self._look_everywhere()
            return
        await self._look_again()

    async def _store_all(self, order: list[AtRisk]) -> None:
        """Begin to store all of them, some at a time; do not wait long for the last ones."""
        self._looked_everywhere = False
        for one in order:
            while len(self._at_work) >= max(1, self._context.limits.sweep_concurrency):
                await self._wait_for_one(self.end_s - monotonic())
                if monotonic() >= self.end_s:
                    return
            self._at_work[one.key] = asyncio.create_task(self._store(one))
        # One that hangs must not keep those waiting whose turn has ended meanwhile.
        await self._wait_for_one(_LOOKS * self._context.limits.poll_s)

    async def _wait_for_one(self, wait_s: float) -> None:
        tasks = self._at_work.values()
        await asyncio.wait(tasks, timeout=max(0.0, wait_s), return_when=asyncio.FIRST_COMPLETED)
        ended = [key for key, task in self._at_work.items() if task.done()]
        for key in ended:
            self._at_work.pop(key).result()

    async def _look_everywhere(self) -> None:
        await self._look(self._scan.everywhere)
        self._looked_everywhere = True

    async def _look_again(self) -> None:
        await self._look(partial(self._scan.among, [one.key for one in self._left]))

    async def _look(self, look: Callable[[], list[AtRisk]]) -> None:
        self._heard_of.clear()
        found = await self._context.blocking(look)
        # Of a dead engine nothing is found: what was known of it before is what is lost.
        if not await self._context.blocking(self._context.store.engine_is_live, self._engine_id):
            raise EngineNotFoundError
        for one in found:
            self._since.setdefault(one.key, one.generation)
        await self._find_stored()
        # The look may have been before what was heard of while it went on.
        heard = [one for one in self._left if one.key in self._heard_of]
        self._left = [one for one in found if one.key not in self._heard_of] + heard

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
            operation = await self._lifecycle.suspend(one.tenant, one.session_id)
            self._begun.add(one.key)
            left_s = max(0.0, self.end_s - monotonic())
            operation = await self._operations.wait(operation, left_s)
        except SessiondError as error:
            self._failed(one, error.code, error.message, retryable=error.retryable)
            return
        told = operation.result or {}
        if operation.status is OperationStatus.RUNNING:
            self._failed(one, DeadlineExceededError.code, _STILL_RUNNING, retryable=True)
        elif operation.status is OperationStatus.FAILED:
            retryable = bool(told.get("retryable"))
            self._failed(one, str(told.get("code")), str(told.get("message")), retryable=retryable)
        else:
            self._stored(one, told)

    def _stored(self, one: AtRisk, told: Result) -> None:
        self._begun.discard(one.key)
        self._heard_of.add(one.key)
        snapshot = cast("Result", told["snapshot"])
        tokens, generation = snapshot["tokens_restorable"], snapshot["generation"]
        self._saved[one.key] = Saved(
            one.tenant, one.session_id, cast("int", generation), cast("int", tokens)
        )
        missing = replace(one, tokens=cast("int", told["missing_tokens"]))
        others = [other for other in self._left if other.key != one.key]
        self._left = [*others, missing] if missing.tokens else others
        # Heard of only if something is missing, or a look finds that it is.
        causes = cast("list[Result]", told["causes"])
        reason = Reason(str(causes[0]["reason"])) if causes else Reason.NOT_CONFIRMED
        self._failed(one, reason.value, EXPLANATIONS[reason].sentence, retryable=False)

    def _failed(self, one: AtRisk, code: str, detail: str, *, retryable: bool) -> None:
        earlier, wait_s = self._failures.get(one.key), math.inf
        if retryable:
            repeated = earlier is not None and earlier.is_about(one) and earlier.code == code
            wait_s = 2 * earlier.wait_s if earlier and repeated else _FIRST_RETRY_S
            wait_s = min(wait_s, _LAST_RETRY_S)
        due_s = monotonic() + wait_s
        self._failures[one.key] = _Failure(code, detail, one.used_unix_s, wait_s, due_s)

    def _failure(self, one: AtRisk) -> _Failure | None:
        """Return why it was not stored, unless it has had a turn since."""
        failure = self._failures.get(one.key)
        return failure if failure and failure.is_about(one) else None

    def _is_due(self, one: AtRisk) -> bool:
        failure = self._failure(one)
        is_free = not one.busy and one.key not in self._at_work
        return is_free and (failure is None or failure.due_s <= monotonic())

    def _is_waiting(self, one: AtRisk) -> bool:
        failure = self._failure(one)
        return one.busy or (failure is not None and failure.wait_s < math.inf)

    def _unsaved(self, one: AtRisk) -> Unsaved:
        failure, code, detail = self._failure(one), DeadlineExceededError.code, _NOT_REACHED
        if one.busy:
            code, detail = TurnInFlightError.code, TurnInFlightError().message
        elif failure is not None:
            code, detail = failure.code, failure.detail
        elif self._engine_ended:
            code, detail = EngineNotFoundError.code, "The engine ended before it was stored."
        return Unsaved(one.tenant, one.session_id, code, detail, one.tokens)
