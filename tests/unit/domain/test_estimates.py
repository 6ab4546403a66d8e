from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.estimates import NOTHING, SURE, Estimate, about, exactly

TIMES = st.floats(0.0, 1e6)
ESTIMATES = st.builds(about, TIMES, st.floats(0.0, 3.0))


@given(left=ESTIMATES, right=ESTIMATES)
def test_sums_and_the_longer_of_two_stay_in_order(left: Estimate, right: Estimate) -> None:
    for one in (left, left + right, left.beside(right)):
        assert one.low_s <= one.likely_s <= one.high_s
    assert left.beside(right) == right.beside(left)
    assert left + NOTHING == left


def test_nine_of_ten_are_between_the_ends() -> None:
    estimate = about(1.0, 0.5)
    within = math.erf(math.log(estimate.high_s) / 0.5 / math.sqrt(2.0))
    assert within == pytest.approx(0.9, abs=0.001)
    assert estimate.low_s == pytest.approx(1.0 / estimate.high_s)


@pytest.mark.parametrize(
    ("estimate", "within_s", "sureness"),
    [
        (about(1.0, 0.5), 1.0, 0.0),
        (about(1.0, 0.5), math.exp(1.0), 2.0),
        (about(1.0, 0.5), math.exp(-0.5), -1.0),
        (about(1.0, 0.5), about(1.0, 0.5).high_s, SURE),
        (exactly(1.0), 1.0, math.inf),
        (exactly(1.0), 0.999, -math.inf),
        (NOTHING, 0.001, math.inf),
        (NOTHING, 0.0, -math.inf),
        (about(1.0, 0.5), -1.0, -math.inf),
    ],
)
def test_how_surely_it_ends_in_time(estimate: Estimate, within_s: float, sureness: float) -> None:
    assert estimate.sureness(within_s) == pytest.approx(sureness)


def test_json() -> None:
    assert exactly(2.0).as_json() == {"likely_s": 2.0, "low_s": 2.0, "high_s": 2.0}
