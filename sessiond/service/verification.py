"""Verifying a tenant's sessions on demand, at low priority, in the background."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import NotFoundError, OperationInProgressError

if TYPE_CHECKING:
    from sessiond.domain.ids import TenantId
    from sessiond.service.background import Background
    from sessiond.service.context import Context
    from sessiond.service.damage import DamageTeller
    from sessiond.store.findings import VerifyOptions, VerifyReport
    from sessiond.store.verify import Verification


@dataclass
class Run:
    """One verification; its report grows while it runs."""

    options: VerifyOptions
    verification: Verification
    started_unix_s: float
    finished_unix_s: float | None = None
    task: asyncio.Task[None] | None = None

    @property
    def report(self) -> VerifyReport:
        """What it has found so far."""
        return self.verification.report

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.task is not None and not self.task.done()


class Verifier:
    """Runs one verification at a time for each tenant, and remembers the newest.

    It keeps nothing that a restart could hurt: whoever asks again gets a new one.
    """

    def __init__(self, context: Context, background: Background, teller: DamageTeller) -> None:
        self._context, self._background, self._teller = context, background, teller
        self._runs: dict[TenantId, Run] = {}

    async def start(self, tenant: TenantId, options: VerifyOptions) -> Run:
        """Begin to verify the tenant's sessions, or join the same that runs already.

        :raises OperationInProgressError: one with other options runs.
        """
        running = self._runs.get(tenant)
        if running and running.is_running:
            if running.options != options:
                raise OperationInProgressError("Another verification of yours is running.")
            return running
        run = Run(options, self._context.store.verification(options), self._context.now())
        run.task = asyncio.create_task(self._perform(run))
        self._runs[tenant] = run
        return run

    def newest(self, tenant: TenantId) -> Run:
        """Return the tenant's newest verification since the daemon's start.

        :raises NotFoundError: there was none.
        """
        run = self._runs.get(tenant)
        if run is None:
            raise NotFoundError("No verification was run since the daemon's start.")
        return run

    async def wait(self, run: Run, wait_s: float) -> Run:
        """Return the run when it has ended, or as it is after *wait_s*.

        :raises SessiondError: what ended it early.
        """
        if run.task:
            await asyncio.wait((run.task,), timeout=wait_s)
            if run.task.done():
                run.task.result()
        return run

    async def stop(self) -> None:
        """End what is running."""
        tasks = [run.task for run in self._runs.values() if run.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _perform(self, run: Run) -> None:
        await self._background.drive(run.verification.steps())
        run.finished_unix_s = self._context.now()
        await self._teller.tell(run.report)
