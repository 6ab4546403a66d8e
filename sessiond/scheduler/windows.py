"""When sweep windows come: cron lines as triggers of the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]

from sessiond.domain.cron import next_time

if TYPE_CHECKING:
    from sessiond.domain.cron import CronLine
    from sessiond.domain.windows import SweepWindow


class WindowTrigger(BaseTrigger):  # type: ignore[misc]  # the scheduler has no types
    """Fires when a cron line comes, by the clock of a time zone.

    The scheduler's own one leaves a day out where the hour after midnight is skipped in spring.
    """

    def __init__(self, line: CronLine, zone: ZoneInfo) -> None:
        self._line = line
        self._zone = zone

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """Return the first time behind the *previous* one; without one, not before *now*."""
        # In UTC: by a clock that repeats an hour, the same time may come once more.
        begin = previous.astimezone(UTC) + timedelta(microseconds=1) if previous else now
        return next_time(self._line, self._zone, begin)


def trigger_of(window: SweepWindow) -> WindowTrigger:
    """Return what fires when *window* comes, by the clock of its time zone."""
    return WindowTrigger(window.cron, ZoneInfo(window.timezone))
