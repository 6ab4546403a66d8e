from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.loss import Loss, RelativeError, SnapshotLoss, loss_of

SIZES = st.floats(0, 1e6)
LOSSES = st.builds(Loss, SIZES, SIZES, SIZES, SIZES)
SOME = Loss(error_squares=4.0, squares=100.0, largest_error=1.5, largest=6.0)


def test_errors_are_relative_to_the_numbers() -> None:
    assert SOME.relative == RelativeError(rms=0.2, largest=0.25)
    assert Loss().relative == RelativeError(0.0, 0.0)


@given(LOSSES, LOSSES)
def test_losses_add_up(one: Loss, other: Loss) -> None:
    both = one + other
    assert both == other + one
    assert both.largest_error == max(one.largest_error, other.largest_error)
    assert both.squares >= max(one.squares, other.squares)
    assert one + Loss() == one


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_impossible_losses(value: float) -> None:
    assert SOME.is_possible
    for place in range(4):
        numbers = [1.0] * 4
        numbers[place] = value
        assert not Loss(*numbers).is_possible


def test_a_snapshot_tells_of_k_and_v_apart_or_of_both_together() -> None:
    apart = loss_of("fp8", [(SOME, Loss()), (SOME, SOME)])
    assert apart.errors == {"k": SOME.relative, "v": RelativeError(0.2, 0.25)}
    assert loss_of("fp8", [(SOME,)]).errors == {"kv": SOME.relative}


def test_chunks_that_lost_nothing_do_not_hide_what_others_lost() -> None:
    lossless = Loss(0.0, 1e9, 0.0, 1e3)
    assert loss_of("fp8", [(), (lossless,), (SOME,)]).errors == {"kv": SOME.relative}
    assert loss_of("fp8", [(lossless,), ()]) == SnapshotLoss("fp8", {})


def test_chunks_that_were_measured_in_other_parts_are_told_together() -> None:
    found = loss_of("fp8", [(SOME, SOME), (), (SOME,)])
    assert found.errors == {"kv": (SOME + SOME + SOME).relative}


@pytest.mark.parametrize("loss", [SnapshotLoss("fp8", {}), loss_of("fp8", [(SOME, SOME)])])
def test_it_is_the_same_after_json(loss: SnapshotLoss) -> None:
    assert SnapshotLoss.from_json(json.loads(json.dumps(asdict(loss)))) == loss


def test_what_later_versions_tell_more_is_left_out() -> None:
    error = {"rms": 0.25, "largest": 0.5, "median": 0.125}
    read = SnapshotLoss.from_json({"way": "fp8", "errors": {"kv": error}, "bits": 8})
    assert read == SnapshotLoss("fp8", {"kv": RelativeError(0.25, 0.5)})
