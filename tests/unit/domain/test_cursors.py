from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.cursors import MAX_EVENT_ID, START, Cursor, cursor_of, parse_cursor
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.session import Event

EVENT = Event(41, DEFAULT_TENANT, SessionId("s"), "turn", 1.5, {"n": 1})


@given(st.integers(0, MAX_EVENT_ID), st.floats(allow_nan=False))
def test_a_cursor_is_read_as_it_was_written(number: int, at_unix_s: float) -> None:
    event = replace(EVENT, event_id=number, at_unix_s=at_unix_s)
    cursor = parse_cursor(str(cursor_of(event)))
    assert cursor == cursor_of(event)
    assert cursor.is_of(event)
    assert parse_cursor(str(number)) == Cursor(number)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": TenantId("t")},
        {"session_id": SessionId("t")},
        {"kind": "resumed"},
        {"at_unix_s": 1.5000000000000002},
    ],
)
def test_another_event_of_the_same_number_is_not_the_one(change: dict[str, object]) -> None:
    other = replace(EVENT, **change)  # type: ignore[arg-type]
    assert not cursor_of(EVENT).is_of(other)
    assert Cursor(41).is_of(other)  # nobody can tell


def test_where_there_is_no_event() -> None:
    assert not Cursor(41).is_of(None)
    assert not cursor_of(EVENT).is_of(None)
    assert START.is_of(None)
    assert cursor_of(None) == START == parse_cursor("0")


@pytest.mark.parametrize(
    "text", ["", "-1", "x", "1-", "1-0", "1-0123456789aB", "1.0", " 1", "1\n", "\u0661"]
)
def test_what_is_no_cursor(text: str) -> None:
    for given_text in (text, str(2**63), 5000 * "9"):
        with pytest.raises(InvalidInputError):
            parse_cursor(given_text)
