"""The idle sweep and the recovery of abandoned operations, every few seconds; upkeep, scrub.

All are functions of ``now`` that may run at any time and in any number of daemons; the
scheduler only keeps two runs of one job in this daemon from overlapping. Sweep windows come by
the clock, in every daemon.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from apscheduler.executors.asyncio import AsyncIOExecutor  # type: ignore[import-untyped]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]

from sessiond.domain.errors import SessiondError
from sessiond.scheduler.windows import trigger_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessiond.domain.windows import SweepWindow
    from sessiond.service.services import Services

_log = logging.getLogger(__name__)

#: A window comes late by so much at most, as after a restart; then it is left out.
WINDOW_GRACE_S: Final = 300


class Jobs:
    """The running jobs of one daemon; make it inside the event loop."""

    def __init__(self, services: Services, sweep_interval_s: float, lease_s: float) -> None:
        # It warns of each run that is left out because the one before it still goes on.
        logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
        self._scheduler = AsyncIOScheduler(
            timezone="UTC",
            executors={"default": AsyncIOExecutor()},
            # A run that is late is done once, not once for each missed time.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._add("sweep", services.sweeper.sweep, sweep_interval_s)
        for window in services.context.limits.sweep_windows:
            self._add_window(services, window, sweep_interval_s)
        self._add_scrub(services)
        interval_s = services.context.limits.retention_interval_s
        self._add("retention", services.retention.run, interval_s)
        self._add("calibration", services.first_look.run, services.context.limits.learn_s)
        self._add("recovery", services.recovery.recover, lease_s / 2)

    def start(self) -> None:
        """Begin; the first runs come one period later."""
        self._scheduler.start()

    def stop(self) -> None:
        """End; a run in progress is cut off."""
        self._scheduler.shutdown(wait=False)

    def _add_scrub(self, services: Services) -> None:
        period_s = services.context.limits.scrub_period_s
        if period_s:
            self._add("scrub", services.scrubber.scrub, min(3600.0, max(1.0, period_s / 1000)))

    def _add_window(self, services: Services, window: SweepWindow, retry_s: float) -> None:
        async def come() -> None:
            deadline_s = monotonic() + WINDOW_GRACE_S
            while True:
                try:
                    await services.sweeper.sweep(window)
                except SessiondError:
                    if monotonic() >= deadline_s:
                        raise
                    await asyncio.sleep(retry_s)  # it does not come again before tomorrow
                else:
                    return

        trigger = trigger_of(window)
        just_missed = datetime.now(UTC) - timedelta(seconds=WINDOW_GRACE_S)
        self._scheduler.add_job(
            _reported(f"window {window.name}", come),
            trigger,
            id=f"window {window.name}",
            # Several daemons, or one that starts anew, may do it twice: nothing is done again.
            next_run_time=trigger.get_next_fire_time(None, just_missed),
            misfire_grace_time=WINDOW_GRACE_S,
        )

    def _add(self, name: str, job: Callable[[], Awaitable[object]], interval_s: float) -> None:
        run = _reported(name, job)
        self._scheduler.add_job(run, "interval", seconds=interval_s, id=name)


def _reported(name: str, job: Callable[[], Awaitable[object]]) -> Callable[[], Any]:
    async def run() -> None:
        try:
            await job()
        except SessiondError as error:
            # The registry or the store is away: the next run tries again.
            _log.warning("%s: %s", name, error.message)

    return run
