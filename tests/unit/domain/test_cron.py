from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.cron import parse_cron
from sessiond.domain.errors import ConfigurationError

ALL_DAYS = tuple(range(1, 32))
ALL_MONTHS = tuple(range(1, 13))
WEEK = tuple(range(7))


@pytest.mark.parametrize(
    ("text", "minutes", "hours"),
    [
        ("0 19 * * *", (0,), (19,)),
        ("  5\t4  * * * ", (5,), (4,)),
        ("*/20 */12 * * *", (0, 20, 40), (0, 12)),
        ("0-10/5,59 22-23 * * *", (0, 5, 10, 59), (22, 23)),
        ("50/4 7,7 * * *", (50, 54, 58), (7,)),
    ],
)
def test_times(text: str, minutes: tuple[int, ...], hours: tuple[int, ...]) -> None:
    line = parse_cron(text)
    assert (line.minutes, line.hours) == (minutes, hours)
    assert (line.days, line.months, line.weekdays) == (ALL_DAYS, ALL_MONTHS, WEEK)
    assert line.text == " ".join(text.split())
    assert not line.either_day


@pytest.mark.parametrize(
    ("written", "weekdays"),
    [
        ("1", (1,)),  # Monday, as in cron
        ("mon", (1,)),
        ("0", (0,)),
        ("7", (0,)),
        ("SUN", (0,)),
        ("mon-fri", (1, 2, 3, 4, 5)),
        ("1-5", (1, 2, 3, 4, 5)),
        ("fri-sun", (0, 5, 6)),
        ("5-7", (0, 5, 6)),
        ("sun-tue", (0, 1, 2)),
        ("mon-fri/2", (1, 3, 5)),
        ("*/3", (0, 3, 6)),
        ("Sat,0", (0, 6)),
        ("0-7", WEEK),
    ],
)
def test_weekdays(written: str, weekdays: tuple[int, ...]) -> None:
    assert parse_cron(f"0 19 * * {written}").weekdays == weekdays


@pytest.mark.parametrize(
    ("days", "weekdays", "either"),
    [
        ("13", "fri", True),
        ("13", "*", False),
        ("*", "fri", False),
        ("*/2", "fri", False),
        ("13", "*/2", False),
    ],
)
def test_two_fields_of_days_are_alternatives(days: str, weekdays: str, *, either: bool) -> None:
    assert parse_cron(f"0 0 {days} jan-mar {weekdays}").either_day is either


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "five fields"),
        ("0 19 * *", "five fields"),
        ("0 0 19 * * *", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "minute '60' is not between 0 and 59"),
        ("0 24 * * *", "hour '24' is not between 0 and 23"),
        ("0 0 0 * *", "day of the month '0' is not between 1 and 31"),
        ("0 0 * 13 *", "month '13' is not between 1 and 12"),
        ("0 0 * * 8", "day of the week '8' is not between 0 and 7"),
        ("0 0 * * mond", "day of the week 'mond'"),
        ("0 0 * * montag-fri", "day of the week 'montag'"),
        ("0 0 * sun *", "month 'sun'"),
        ("mon 0 * * *", "minute 'mon'"),
        ("0 0 L * *", "day of the month 'L'"),
        ("0 0 ? * *", "day of the month '?' is not written as"),
        ("-5 0 * * *", "minute '-5' is not written as"),
        ("1-2-3 0 * * *", "minute '1-2-3' is not written as"),
        ("5, 0 * * *", "minute '' is not written as"),
        ("0 5-3 * * *", "hour '5-3' is a range without a value"),
        ("*/0 0 * * *", "minute '*/0' is a range without a value"),
        ("*/000 0 * * *", "minute '*/000' is a range without a value"),
        ("0 0 31 2 *", "day of the month '31' never comes in the month '2'"),
        ("0 0 31 2,4,6 *", "never comes"),
        ("٣ 0 * * *", "minute '٣' is not written as"),
    ],
)
def test_what_is_none_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_cron(text)
    assert why in caught.value.message


def test_the_longest_february_counts() -> None:
    assert parse_cron("0 0 29 2 *").days == (29,)
    assert parse_cron("0 0 31 2 mon").either_day  # every Monday of February


@given(st.text(alphabet="0123456789*/-, abcdefmonsu\t", max_size=20))
def test_nothing_but_a_refusal_is_raised(text: str) -> None:
    try:
        line = parse_cron(text)
    except ConfigurationError:
        return
    assert line.minutes
    assert parse_cron(line.text) == line
