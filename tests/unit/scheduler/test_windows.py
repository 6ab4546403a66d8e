"""When windows come, by the clocks of real time zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.cron import next_time, parse_cron
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
    ("cron", "timezone", "day", "expected"),
    [
        ("0 0 * * *", "Africa/Cairo", "2027-04-30", "04-29 22:00"),
        ("30 0 * * *", "America/Santiago", "2027-09-05", "09-05 04:30"),
        ("45 0 * * *", "Asia/Beirut", "2027-03-28", "03-27 22:45"),
        ("0 0 * * *", "America/Havana", "2027-03-14", "03-14 05:00"),
        ("0 0 30 4 *", "Africa/Cairo", "2027-04-30", "04-29 22:00"),
    ],
)
def test_the_day_that_lacks_its_first_hour(
    cron: str, timezone: str, day: str, expected: str
) -> None:
    end = (datetime.fromisoformat(day) + timedelta(days=1)).date().isoformat()
    assert comes(cron, day, end, timezone) == [expected]


def test_a_day_that_is_skipped_comes_on_the_next() -> None:
    # Samoa crossed the date line: its 30 December 2011 never was.
    found = comes("0 12 30 12 *", "2011-12-01", "2012-01-31", "Pacific/Apia")
    assert found == ["12-30 22:00"]


def test_a_leap_day_of_the_week_is_waited_for() -> None:
    at = next_time(parse_cron("0 0 29 2 */8"), ZoneInfo("UTC"), datetime(2026, 11, 30, tzinfo=UTC))
    assert at == datetime(2032, 2, 29, tzinfo=UTC)  # a Sunday


LINES = st.builds(
    " ".join,
    st.tuples(
        st.sampled_from(["*", "0", "30", "*/15", "59"]),
        st.sampled_from(["*", "0", "2", "1-3", "23", "*/6"]),
        st.sampled_from(["*", "1", "28-31", "*/2"]),
        st.sampled_from(["*", "3,4,9,10,11", "2"]),
        st.sampled_from(["*", "0", "1-5"]),
    ),
)


@given(
    LINES,
    st.sampled_from([BERLIN, "UTC", "Australia/Lord_Howe", "Africa/Cairo", "America/St_Johns"]),
    st.integers(0, 3 * 366 * 1440).map(
        lambda m: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=m)
    ),
)
def test_it_is_the_first_minute_that_fits(cron: str, timezone: str, begin: datetime) -> None:
    line, zone = parse_cron(cron), ZoneInfo(timezone)
    at = next_time(line, zone, begin)
    assert at is not None
    assert at >= begin
    # No minute before it that the clock shows is meant.
    minute = max(begin, at - timedelta(days=2)).replace(second=0, microsecond=0)
    while minute < at:
        shown = minute.astimezone(zone)
        day_fits = shown.day in line.days, shown.isoweekday() % 7 in line.weekdays
        fits = (any if line.either_day else all)(day_fits) and shown.month in line.months
        is_meant = fits and shown.hour in line.hours and shown.minute in line.minutes
        assert not is_meant or minute < begin
        minute += timedelta(minutes=1)


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
