"""What a request's stages took is read strictly, and written as it was."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.timing import TurnTiming, timing_of

SECONDS = st.floats(0, 1e9)
COUNTS = st.integers(0, 2**40)
TIMINGS = st.builds(
    TurnTiming,
    **{
        one.name: COUNTS if one.type == "int" else SECONDS
        for one in fields(TurnTiming)
        if not one.name.startswith("prefill_from")
    },
)
GOOD = TurnTiming(1, 2, 3, 4, 5, 15, 2.5, 0.5, 700, 0, 32, 32, 40, 1.5).as_json()


@given(TIMINGS)
def test_a_timing_survives_json(timing: TurnTiming) -> None:
    assert TurnTiming.from_json(json.loads(canonical_json(timing.as_json()))) == timing


def test_whole_seconds_are_seconds_and_later_fields_are_left_out() -> None:
    read = TurnTiming.from_json({**GOOD, "added_later": "x"})
    assert (read.lookup_s, type(read.lookup_s)) == (1.0, float)
    assert read.as_json() == GOOD


@pytest.mark.parametrize(
    "changed",
    [
        {"load_s": None},
        {"load_s": "1"},
        {"load_s": True},
        {"load_s": -0.001},
        {"load_s": float("nan")},
        {"load_s": float("inf")},
        {"load_s": 10**400},
        {"read_bytes": 1.5},
        {"read_bytes": 1.0},
        {"read_bytes": False},
        {"read_bytes": -1},
        {"read_bytes": 1 << 63},
        {"prefill_from_token": 41},
    ],
)
def test_what_is_no_timing_is_refused(changed: dict[str, Any]) -> None:
    value = {**GOOD, **changed}
    with pytest.raises(InvalidInputError):
        TurnTiming.from_json(value)
    assert timing_of(value) is None


@pytest.mark.parametrize("name", GOOD)
def test_no_field_may_be_missing(name: str) -> None:
    value = {key: one for key, one in GOOD.items() if key != name}
    with pytest.raises(InvalidInputError, match=name):
        TurnTiming.from_json(value)


@pytest.mark.parametrize("value", [None, [], "x", 1, [GOOD]])
def test_an_answer_without_one_has_none(value: object) -> None:
    assert timing_of(value) is None
