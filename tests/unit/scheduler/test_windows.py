"""When windows come, by the clocks of real time zones."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sessiond.domain.cron import parse_cron
from sessiond.domain.windows import SweepWindow
from sessiond.scheduler.windows import trigger_of

BERLIN = "Europe/Berlin"


def comes(cron: str, begin: str, end: str, timezone: str = BERLIN) -> list[str]:
    """Return when the window comes between two days, in UTC."""
    zone = ZoneInfo(timezone)
    trigger = trigger_of(SweepWindow("", parse_cron(cron), timezone, 300.0))
    now, last = (datetime.fromisoformat(day).replace(tzinfo=zone) for day in (begin, end))
    found: list[str] = []
    previous = None
    while True:
        at = trigger.get_next_fire_time(previous, now)
        if at is None or at >= last:
            return found
        found.append(at.astimezone(UTC).strftime("%m-%d %H:%M"))
        previous = now = at


# 30 November 2026 is a Monday.
@pytest.mark.parametrize(
    ("cron", "timezone", "expected"),
    [
        ("0 19 * * 1", "UTC", ["11-30 19:00"]),
        ("0 19 * * mon", "UTC", ["11-30 19:00"]),
        ("0 19 * * 0", "UTC", ["12-06 19:00"]),
        ("0 19 * * 7", "UTC", ["12-06 19:00"]),
        ("0 19 * * sat-sun", "UTC", ["12-05 19:00", "12-06 19:00"]),
        ("0 19 * * 1-5/2", "UTC", ["11-30 19:00", "12-02 19:00", "12-04 19:00"]),
        ("0 19 * * 1", BERLIN, ["11-30 18:00"]),
        ("30 4 1 * *", "Asia/Kolkata", ["11-30 23:00"]),
        ("0 19 1 * fri", "UTC", ["12-01 19:00", "12-04 19:00"]),  # either day
        ("0 19 */2 * fri", "UTC", []),  # both: the 4th is an even day
        ("0 19 */3 * fri", "UTC", ["12-04 19:00"]),
    ],
)
def test_days(cron: str, timezone: str, expected: list[str]) -> None:
    assert comes(cron, "2026-11-30", "2026-12-07", timezone) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 19 * * *", ["03-28 18:00", "03-29 17:00"]),
        ("30 2 * * *", ["03-28 01:30", "03-29 01:30"]),  # skipped: comes all the same
        ("30 1,3 * * *", ["03-28 00:30", "03-28 02:30", "03-29 00:30", "03-29 01:30"]),
    ],
)
def test_the_day_that_lacks_an_hour(cron: str, expected: list[str]) -> None:
    assert comes(cron, "2026-03-28", "2026-03-30") == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 19 * * *", ["10-24 17:00", "10-25 18:00"]),
        ("30 2 * * *", ["10-24 00:30", "10-25 00:30", "10-25 01:30"]),  # repeated: comes twice
        ("30 1,3 * * *", ["10-23 23:30", "10-24 01:30", "10-24 23:30", "10-25 02:30"]),
    ],
)
def test_the_day_that_repeats_an_hour(cron: str, expected: list[str]) -> None:
    assert comes(cron, "2026-10-24", "2026-10-26") == expected


def test_every_hour_stays_every_hour() -> None:
    for begin, end, hours in (
        ("2026-03-29", "2026-03-30", 23),
        ("2026-10-25", "2026-10-26", 25),
        ("2026-12-24", "2026-12-25", 24),
    ):
        found = comes("15 * * * *", begin, end)
        assert len(found) == len(set(found)) == hours
