from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.reasons import Reason
from sessiond.domain.worth import Admitted, Refused, WriteBudget, WriteFacts, WriteLimits, admit

GIB = 1 << 30
DAY_S = 86_400.0
FACTS = WriteFacts("acme", "s1", 8000, GIB, 0.3, math.inf, 100.0 * GIB, 1e9)
LIMITS = WriteLimits(explored_part=0.0)


def refusal(facts: WriteFacts, limits: WriteLimits = LIMITS) -> Reason | None:
    found = admit(facts, limits)
    return found.cause.reason if isinstance(found, Refused) else None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"tokens": 255}, Reason.TOO_FEW_TOKENS),
        ({"tokens": 256}, None),
        ({"saved_s": 0.0}, Reason.TOO_FEW_TOKENS),
        ({"saved_s": -1.0}, Reason.TOO_FEW_TOKENS),
        ({"saved_s": 0.001}, None),
        ({"return_chance": 0.049}, Reason.NO_EXPECTED_RETURN),
        ({"return_chance": 0.05}, None),
        ({"budget_left_bytes": 0.0}, Reason.WRITE_BUDGET_SPENT),
        ({"budget_left_bytes": 1.0}, None),  # how much it writes is known only afterwards
        ({"spare_bytes": 1.9 * GIB}, Reason.PRESSURE),
        ({"spare_bytes": 2.0 * GIB}, None),
        ({"spare_bytes": 0.0, "return_chance": 0.5}, None),
        ({"spare_bytes": 0.0, "return_chance": 0.01}, Reason.PRESSURE),
        ({"tokens": 1, "return_chance": 0.0}, Reason.TOO_FEW_TOKENS),
    ],
)
def test_what_a_sweep_may_write(change: dict[str, Any], reason: Reason | None) -> None:
    assert refusal(replace(FACTS, **change)) is reason


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({"tokens": 1}, None),
        ({"saved_s": -1.0}, None),
        ({"return_chance": 0.0}, None),
        ({"spare_bytes": 0.0}, Reason.PRESSURE),
        ({"budget_left_bytes": -1.0}, Reason.WRITE_BUDGET_SPENT),
    ],
)
def test_what_somebody_asks_for_is_worth_it(change: dict[str, Any], held: Reason | None) -> None:
    facts = replace(FACTS, **change)
    assert refusal(facts) is not None
    asked = replace(facts, is_explicit=True)
    assert admit(asked, LIMITS) == Admitted()
    # Unless the limits are for everybody: no drive knows who asked.
    assert refusal(asked, replace(LIMITS, holds_explicit=True)) is held


@pytest.mark.parametrize("change", [{"return_chance": 0.0}, {"spare_bytes": 0.0}])
def test_little_is_learned_from_a_few(change: dict[str, Any]) -> None:
    limits = replace(LIMITS, least_outcomes=20.0)
    facts = replace(FACTS, **change)
    assert refusal(replace(facts, outcomes=19.9), limits) is None
    assert refusal(replace(facts, outcomes=20.0), limits) is refusal(facts)


def test_a_refusal_says_its_numbers() -> None:
    found = admit(replace(FACTS, return_chance=0.012), LIMITS)
    assert isinstance(found, Refused)
    assert found.cause.in_words.endswith("(1% come back).")


def explored(session: str, now: float, part: float = 0.1) -> bool:
    facts = replace(FACTS, session=session, return_chance=0.0, now_unix_s=now)
    found = admit(facts, replace(LIMITS, explored_part=part))
    if isinstance(found, Refused):
        assert found.cause.reason is Reason.NO_EXPECTED_RETURN
    return isinstance(found, Admitted) and found.is_explored


def test_some_of_the_unlikely_are_written_to_learn() -> None:
    names = [f"s{number}" for number in range(1000)]
    today = {name for name in names if explored(name, 0.0)}
    assert 60 < len(today) < 140
    assert {name for name in names if explored(name, DAY_S - 1.0)} == today  # the same all day
    tomorrow = {name for name in names if explored(name, DAY_S)}
    assert len(today & tomorrow) < 40
    assert not any(explored(name, 0.0, part=0.0) for name in names)
    assert all(explored(name, 0.0, part=1.0) for name in names)


def test_the_likely_are_not_called_explored() -> None:
    assert admit(FACTS, replace(LIMITS, explored_part=1.0)) == Admitted()


def test_a_day_pays_off_what_was_written() -> None:
    budget = WriteBudget(24 * GIB).spend(24 * GIB, 1000.0)
    assert budget.left(1000.0) == 0.0
    assert budget.left(1000.0 + 3600.0) == pytest.approx(GIB)
    assert budget.left(1000.0 + DAY_S) == budget.left(1e9) == 24 * GIB
    overdrawn = budget.spend(GIB, 1000.0)
    assert overdrawn.left(1000.0) == -GIB
    assert overdrawn.left(1000.0 + 3600.0) == pytest.approx(0.0, abs=1.0)


def test_without_a_budget_any_number_may_be_written() -> None:
    assert WriteBudget().spend(1 << 60, 0.0).left(0.0) == math.inf


def test_a_clock_that_is_set_back_pays_nothing_twice() -> None:
    budget = WriteBudget(24 * GIB).spend(24 * GIB, 1e6)
    assert budget.left(10.0) == 0.0
    later = budget.spend(0, 10.0)
    assert later.left(10.0 + 3600.0) == pytest.approx(GIB)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, DAY_S), st.integers(0, 30 * GIB)), max_size=20))
@example([(0.0, 24 * GIB + 513), (1.0, 0), (0.0, 24 * GIB + 512)])  # two at one moment
def test_no_day_has_more_than_two_budgets_and_one_overdraft(
    steps: list[tuple[float, int]],
) -> None:
    budget, now, written = WriteBudget(24 * GIB), 0.0, []
    for waited, size in steps:
        now += waited
        if budget.left(now) > 0.0:
            budget = budget.spend(size, now)
            written.append((now, size))
    for place, (end, last) in enumerate(written):
        day = [size for at, size in written[: place + 1] if end - DAY_S < at]
        assert sum(day) - last <= 2 * 24 * GIB + 1024
    restored = WriteBudget(24 * GIB).read(json.loads(canonical_json(budget.as_json())))
    assert restored == budget


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"owed_bytes": 1},
        {"owed_bytes": -1, "at_unix_s": 0},
        {"owed_bytes": True, "at_unix_s": 0},
        {"owed_bytes": 1, "at_unix_s": "now"},
        {"owed_bytes": float("inf"), "at_unix_s": 0},
        {"owed_bytes": 10**400, "at_unix_s": 0},
    ],
)
def test_what_is_no_budget_is_refused(value: JsonValue) -> None:
    with pytest.raises(InvalidInputError):
        WriteBudget(1).read(value)
