"""When sweep windows come: cron lines as triggers of the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.combining import OrTrigger  # type: ignore[import-untyped]
from apscheduler.triggers.cron import CronTrigger  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from apscheduler.triggers.base import BaseTrigger  # type: ignore[import-untyped]

    from sessiond.domain.cron import CronLine
    from sessiond.domain.windows import SweepWindow

_EVERY = "*"


def trigger_of(window: SweepWindow) -> BaseTrigger:
    """Return what fires when *window* comes, by the clock of its time zone.

    An hour that a clock repeats in autumn comes twice; a time that it skips in spring comes as
    long after the change as it would have without one.
    """
    line = window.cron
    zone = ZoneInfo(window.timezone)
    days, weekdays = _listed(line.days), _listed(_as_scheduler(line.weekdays))
    if not line.either_day:
        return _trigger(line, zone, day=days, day_of_week=weekdays)
    return OrTrigger([_trigger(line, zone, day=days), _trigger(line, zone, day_of_week=weekdays)])


def _trigger(
    line: CronLine, zone: ZoneInfo, *, day: str = _EVERY, day_of_week: str = _EVERY
) -> Any:  # noqa: ANN401 - the scheduler has no types
    return CronTrigger(
        minute=_listed(line.minutes),
        hour=_listed(line.hours),
        day=day,
        month=_listed(line.months),
        day_of_week=day_of_week,
        timezone=zone,
    )


def _as_scheduler(weekdays: Iterable[int]) -> list[int]:
    """Return weekdays with the scheduler's numbers: it calls Monday 0, cron calls Sunday so."""
    return [(weekday - 1) % 7 for weekday in weekdays]


def _listed(values: Iterable[int]) -> str:
    return ",".join(map(str, values))
