"""Cron lines: five fields, with cron's own numbers, names and rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo

from sessiond.domain.errors import ConfigurationError

_ITEM: Final = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)
_MONTHS: Final = [
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
]
_WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
#: A 29 February comes on each day of the week within so many days.
_LONGEST_WAIT_DAYS: Final = 41 * 366
_LONGEST: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  #: days of each month


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()  #: of the values from ``low`` on

    def value(self, written: str) -> int:
        name = written.lower()
        if name in self.names:
            return self.low + self.names.index(name)
        # Both 0 and 7 are Sunday.
        most = self.high + (self.names == tuple(_WEEKDAYS))
        if not written.isdecimal() or not self.low <= int(written) <= most:
            raise self.refused(written, f"is not between {self.low} and {most}")
        return int(written)

    def refused(self, written: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"In a cron line, the {self.name} {written!r} {why}.")


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, tuple(_MONTHS)),
    _Field("day of the week", 0, 6, tuple(_WEEKDAYS)),
)


@dataclass(frozen=True)
class CronLine:
    """When something happens: every minute that fits, each field in ascending order.

    As in cron, where both fields of days say something (neither begins with ``*``), one of them
    has to fit; else both.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]  #: of the month
    months: tuple[int, ...]
    weekdays: tuple[int, ...]  #: 0 is Sunday
    either_day: bool  #: one of the two fields of days has to fit, not both


def next_time(line: CronLine, zone: ZoneInfo, begin: datetime) -> datetime | None:
    """Return the first time at or after *begin* that a cron line means, by a clock of *zone*.

    An hour that a clock repeats in autumn comes twice; a time that it skips in spring comes as
    long after the change as it would have without one. ``None``: there is none in forty years.
    """
    # A time that is skipped may come on the day after its own, behind some of that.
    first = begin.astimezone(zone).date() - timedelta(days=1)
    for days in range(_LONGEST_WAIT_DAYS):
        two = (first + timedelta(days=days), first + timedelta(days=days + 1))
        meant = (day for day in two if _is_meant(line, day))
        found = [at for day in meant for at in _times(line, zone, day) if at >= begin]
        if found:
            return min(found).astimezone(zone)
    return None


def _is_meant(line: CronLine, day: date) -> bool:
    of_month, of_week = day.day in line.days, day.isoweekday() % 7 in line.weekdays
    fits = of_month or of_week if line.either_day else of_month and of_week
    return fits and day.month in line.months


def _times(line: CronLine, zone: ZoneInfo, day: date) -> Iterator[datetime]:
    for hour, minute in product(line.hours, line.minutes):
        at = datetime.combine(day, time(hour, minute), zone)
        once, again = at.astimezone(UTC), at.replace(fold=1).astimezone(UTC)
        yield once
        if again > once:  # of a time that is skipped, it is before
            yield again


def parse_cron(text: str) -> CronLine:
    """Return the cron line that *text* is: minute, hour, day, month and day of the week.

    :raises ConfigurationError: it is none, or means a day that never comes.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ConfigurationError(
            f"A cron line has five fields (minute, hour, day of the month, month, day of the "
            f"week); {text!r} has {len(parts)}."
        )
    found = [_values(field, part) for field, part in zip(_FIELDS, parts, strict=True)]
    minutes, hours, days, months, weekdays = found
    either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either_day and not any(days[0] <= _LONGEST[month] for month in months):
        raise _FIELDS[2].refused(parts[2], f"never comes in the month {parts[3]!r}")
    return CronLine(" ".join(parts), minutes, hours, days, months, weekdays, either_day)


def _values(field: _Field, written: str) -> tuple[int, ...]:
    found: set[int] = set()
    for item in written.split(","):
        found.update(_range(field, item))
    if field.names == tuple(_WEEKDAYS):
        found = {value % 7 for value in found}
    return tuple(sorted(found))


def _range(field: _Field, item: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise field.refused(item, "is not written as '*', '5', '1-5', '*/5' or a list of these")
    first, last, step = match["first"], match["last"], match["step"]
    low = field.value(first) if first else field.low
    high = field.value(last) if last else low if first and not step else field.high
    if high < low and high == 0 and field.names:
        high = 7  # a range that ends with Sunday
    stride = int(step or 1)
    if high < low or not stride:
        raise field.refused(item, "is a range without a value")
    return range(low, high + 1, stride)
