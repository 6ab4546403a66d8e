"""Drain: empty an engine before it stops."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import EngineNotFoundError
from sessiond.domain.ids import SessionId
from sessiond.domain.reasons import Cause, Reason
from sessiond.service.drain_run import DrainRun
from sessiond.service.drain_scan import Checks, DrainScan
from sessiond.service.settling import Settler

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.drains import DrainReport
    from sessiond.domain.ids import TenantId
    from sessiond.service.context import Context
    from sessiond.service.lifecycle import Lifecycle
    from sessiond.service.operations import Operations
    from sessiond.service.snapshots import Snapshots

_log = logging.getLogger(__name__)


class Drainer:
    """Drains engines. What is asked twice at once is done once, as long as the longer asks."""

    def __init__(
        self,
        context: Context,
        snapshots: Snapshots,
        lifecycle: Lifecycle,
        operations: Operations,
    ) -> None:
        self._context, self._snapshots = context, snapshots
        self._lifecycle, self._operations = lifecycle, operations
        self._settler = Settler(context)
        self._turn = asyncio.Lock()  # a mark and its drain come and go together
        self._running: dict[str, tuple[DrainRun, asyncio.Task[None]]] = {}

    async def drain(self, tenant: TenantId, engine_id: str, deadline_s: float) -> DrainReport:
        """Suspend all sessions of an engine, the most valuable first, within *deadline_s*.

        From now until :meth:`undrain`, or the engine's end, no new turn or resume is sent to it
        if another engine can serve; every daemon of the store sees that. Turns in flight are
        waited for. Repeating it looks again. Without time it still tells what is not stored.

        :raises EngineNotFoundError: there is no live engine of that id.
        :raises StoreError: the store cannot be read, or the engine not be marked.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        store, now = self._context.store, self._context.now()
        note: dict[str, JsonValue] = {
            "began_unix_s": now,
            "deadline_s": deadline_s,
            "tenant": tenant,
        }
        async with self._turn:
            await self._context.blocking(store.drains.mark, engine_id, note)
            run, task = self._run_of(tenant, engine_id)
            run.end_s = max(run.end_s, monotonic() + deadline_s)
        # A caller that hangs up ends nothing.
        await asyncio.wait((task,), timeout=deadline_s)
        await run.looked.wait()  # without that it could not tell what is missing
        if task.done() and not task.cancelled():
            task.result()
        report = run.report()
        _log.info(
            "engine %s drained in %.1f s: %d sessions stored, %d not",
            engine_id,
            report.seconds,
            len(report.saved),
            len(report.unsaved),
        )
        return report

    async def undrain(self, engine_id: str) -> bool:
        """Let an engine serve again as any other; return whether it was being drained.

        Drains of other daemons end as well, as soon as they see that the mark is gone.

        :raises EngineNotFoundError: there is no live engine of that id.
        :raises StoreError: its mark cannot be removed.
        """
        await self._context.engines.get(engine_id)
        async with self._turn:
            running = self._running.get(engine_id)
            if running is not None:
                running[1].cancel()  # suspends that run go on to their end
                await asyncio.wait((running[1],))
            return await self._context.blocking(self._context.store.drains.unmark, engine_id)

    async def stop(self) -> None:
        """End all drains of this daemon; the engines stay marked."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run_of(self, tenant: TenantId, engine_id: str) -> tuple[DrainRun, asyncio.Task[None]]:
        """Return the drain that runs, or begin one."""
        running = self._running.get(engine_id)
        if running is not None and not running[1].done():
            return running
        scan = DrainScan(self._context, self._snapshots, engine_id)
        checks = Checks(
            doubt=partial(self._doubt, tenant, engine_id),
            sent=partial(self._context.on_the_way.count, engine_id),
            is_wanted=partial(self._is_wanted, engine_id),
        )
        run = DrainRun(self._context, self._lifecycle, self._operations, scan, checks)
        task = asyncio.create_task(run.run())
        self._running[engine_id] = started = (run, task)
        task.add_done_callback(lambda _: self._ended(engine_id, started))
        return started

    async def _doubt(self, tenant: TenantId, engine_id: str) -> Cause | None:
        """Return why an engine may have more than its heads tell of, when they are written.

        :raises EngineNotFoundError: the engine has ended.
        """
        engine = await self._context.engines.get(engine_id)
        if self._context.on_the_way.is_any(engine_id):
            return Cause(Reason.TURN_IN_FLIGHT, "sent to the engine, and not begun there")
        doubt = await self._settler.settle(tenant, SessionId(""), engine)
        is_silent = doubt is not None and doubt.reason is Reason.HEAD_UNCONFIRMED
        if is_silent and engine.attestable:
            return None  # as one that is asleep: its caches were reset, and it keeps nothing since
        return doubt

    async def _is_wanted(self, engine_id: str) -> bool:
        """Whether a run goes on. One that does not is not joined any more.

        :raises EngineNotFoundError: the engine has ended, and the mark with it.
        """
        store = self._context.store
        async with self._turn:
            if await self._context.blocking(store.drains.is_marked, engine_id):
                return True
            self._running.pop(engine_id, None)
        if not await self._context.blocking(store.engine_is_live, engine_id):
            raise EngineNotFoundError
        return False  # another daemon has taken the mark away

    def _ended(self, engine_id: str, ended: tuple[DrainRun, asyncio.Task[None]]) -> None:
        ended[0].looked.set()  # here: one that is cancelled at once has done nothing
        if self._running.get(engine_id) is ended:
            del self._running[engine_id]
