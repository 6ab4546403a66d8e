from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.returns import MOST_TALLIES, Returns, Tally, read_returns

DAY_S = 86_400.0
CODER, CHAT, OTHER = ("acme", "coder"), ("acme", "chat"), ("other", "coder")


def learned(*outcomes: tuple[tuple[str, str], int, int], now: float = 0.0) -> Returns:
    """Return what is known after so many came back, and so many did not."""
    returns = Returns()
    for kind, came, went in outcomes:
        for number in range(came + went):
            returns = returns.with_outcome(kind, now, came_back=number < came)
    return returns


def test_at_first_one_of_two_is_expected_back() -> None:
    assert Returns().chance(CODER, 0.0) == 0.5


def test_a_kind_is_known_by_its_outcomes() -> None:
    returns = learned((CODER, 95, 5), (CHAT, 2, 98))
    assert returns.chance(CODER, 0.0) == pytest.approx(0.95, abs=0.03)
    assert returns.chance(CHAT, 0.0) == pytest.approx(0.02, abs=0.03)


def test_a_new_kind_is_taken_for_one_of_its_tenant_and_a_new_tenant_for_one_of_all() -> None:
    returns = learned((CHAT, 0, 100))
    assert returns.chance(CODER, 0.0) < 0.05
    assert returns.chance(OTHER, 0.0) < 0.05
    mixed = learned((CHAT, 0, 100), (OTHER, 100, 0))
    assert mixed.chance(("acme", "new"), 0.0) < 0.1
    assert mixed.chance(("other", "new"), 0.0) > 0.9
    assert mixed.chance(("third", "new"), 0.0) == pytest.approx(0.5, abs=0.05)


def test_outcomes_grow_old() -> None:
    returns = learned((CODER, 0, 50))
    chances = [returns.chance(CODER, days * DAY_S) for days in (0, 14, 60, 10_000)]
    assert chances == sorted(chances)
    assert chances[0] < 0.05
    assert chances[-1] == pytest.approx(0.5, abs=0.01)
    anew = returns
    for _ in range(5):
        anew = anew.with_outcome(CODER, 60 * DAY_S, came_back=True)
    assert anew.chance(CODER, 60 * DAY_S) > 0.7


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    tally = Tally(3.0, 1.0, 1000.0)
    assert tally.at(10.0) == tally
    assert tally.plus(10.0, came_back=True) == Tally(4.0, 1.0, 1000.0)


def test_memory_is_bounded_and_the_least_known_goes() -> None:
    names = [f"t{number}" for number in range(MOST_TALLIES)]
    known = {name: Tally(came=3.0, at_unix_s=1.0) for name in names}
    known["t7"] = Tally(went=1.0, at_unix_s=1.0)
    full = Returns(Tally(), known, {(name, "m"): tally for name, tally in known.items()})
    returns = full.with_outcome(CODER, 1.0, came_back=True)
    assert set(full.tenants) - set(returns.tenants) == {"t7"}
    assert set(full.kinds) - set(returns.kinds) == {("t7", "m")}
    assert returns.kinds[CODER].came == 1.0


OUTCOMES = st.lists(
    st.tuples(st.sampled_from([CODER, CHAT, OTHER]), st.floats(0, 1e7), st.booleans()), max_size=10
)


@settings(max_examples=30)
@given(outcomes=OUTCOMES, now=st.floats(0, 1e8))
def test_a_chance_is_a_chance_and_json_keeps_it(
    outcomes: list[tuple[tuple[str, str], float, bool]], now: float
) -> None:
    returns = Returns()
    for kind, at, came_back in outcomes:
        before = returns.chance(kind, at)
        returns = returns.with_outcome(kind, at, came_back=came_back)
        after = returns.chance(kind, at)
        assert (after >= before) if came_back else (after <= before)
    assert 0.0 < returns.chance(CODER, now) < 1.0
    assert read_returns(json.loads(canonical_json(returns.as_json()))) == returns


GOOD: dict[str, Any] = {
    "version": 1,
    "everybody": [1, 2.5, 3],
    "tenants": [["acme", 1, 2, 3]],
    "kinds": [["acme", "coder", 1, 2, 3]],
}


def test_what_was_written_is_read() -> None:
    read = read_returns(GOOD)
    assert read.everybody == Tally(1.0, 2.5, 3.0)
    assert read.kinds == {CODER: Tally(1.0, 2.0, 3.0)}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**GOOD, "version": 2},
        {**GOOD, "everybody": [1, 2]},
        {**GOOD, "everybody": [1, 2, -1]},
        {**GOOD, "everybody": [1, 2, True]},
        {**GOOD, "everybody": [1, 2, float("nan")]},
        {**GOOD, "everybody": [1, 2, 10**400]},
        {**GOOD, "tenants": [[]]},
        {**GOOD, "tenants": [[5, 1, 2, 3]]},
        {**GOOD, "tenants": {}},
        {**GOOD, "tenants": ["acme"]},
        {**GOOD, "kinds": [["acme", 1, 2, 3]]},
        {**GOOD, "kinds": [["acme", "coder", 1, 2, "3"]]},
        {"version": 1, "everybody": [1, 2, 3]},
    ],
)
def test_anything_else_is_refused(value: JsonValue) -> None:
    with pytest.raises(InvalidInputError):
        read_returns(value)
