from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.app.bench.arrivals import prompts
from sessiond.app.bench.figures import (
    FURTHER_STORE_RATIOS,
    STORE_RATIOS,
    gaps,
    median_ratio,
    percentile,
    rate,
    ratios,
    rotated,
)
from sessiond.app.bench.interference import RESUME, SUSPEND, VRAM, InterferenceOptions, order
from sessiond.app.bench.main import size_bytes
from sessiond.app.bench.region import windows
from sessiond.app.bench.streams import Stamps
from sessiond.domain.errors import ConfigurationError

FLOATS = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


def test_percentiles_by_hand() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 99) == 99
    assert percentile(values, 50) == 50
    assert percentile(values, 100) == 100
    assert percentile([7.0], 1) == 7
    assert percentile([3.0, 1.0, 2.0], 99) == 3


@given(values=FLOATS, percent=st.floats(0.1, 100))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6
    assert sum(value < found for value in values) < len(values) * percent / 100


@pytest.mark.parametrize("percent", [0, 101])
def test_percentiles_that_are_none(percent: float) -> None:
    with pytest.raises(ValueError, match="percentage"):
        percentile([1.0], percent)
    with pytest.raises(ValueError, match="values"):
        percentile([], 50)


def test_a_slow_round_slows_both_sides_of_a_ratio() -> None:
    assert median_ratio([2.0, 0.2, 2.2], [4.0, 0.4, 4.0]) == 0.5
    with pytest.raises(ValueError, match="pairs"):
        median_ratio([1.0], [1.0, 2.0])


def test_rates_tell_their_spread() -> None:
    found = rate([3.0, 1.0, 2.0])
    assert (found.median_bytes_s, found.least_bytes_s, found.most_bytes_s) == (2.0, 1.0, 3.0)


def test_everybody_begins_once() -> None:
    turns = [rotated("abc", by) for by in range(3)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert rotated("abc", 3) == turns[0]
    assert rotated([], 5) == []


def test_ratios_are_those_of_what_was_measured() -> None:
    samples = {"restore_raw": [2.0], "device_read": [4.0], "device_write": [1.0]}
    assert ratios(STORE_RATIOS, samples) == {"restore_raw_vs_device_read": 0.5}
    assert ratios(FURTHER_STORE_RATIOS, samples) == {}


@given(chunks=st.integers(1, 60), slots=st.integers(1, 60))
def test_windows_cover_every_chunk_once_with_slots_of_their_own(chunks: int, slots: int) -> None:
    parts = windows(chunks, slots)
    covered = [part.first_chunk + place for part in parts for place in range(part.chunks)]
    assert covered == list(range(chunks))
    for part in parts:
        assert len(set(part.slots)) == part.chunks
        assert set(part.slots) <= set(range(slots))


def test_gaps_are_those_inside_the_block() -> None:
    stamps = Stamps([1.0, 2.0, 2.5, 4.5, 9.0])
    assert stamps.gaps_s(2.0, 5.0) == [0.5, 2.0]
    assert stamps.gaps_s(5.0, 6.0) == []
    found = gaps([0.5, 2.0, 0.5])
    assert (found.count, found.median_s, found.p99_s, found.longest_s) == (3, 0.5, 2.0, 2.0)


def test_the_reference_takes_every_place_and_a_suspend_comes_before_its_resume() -> None:
    orders = [order(cycle) for cycle in range(3)]
    assert {one.index(VRAM) for one in orders} == {0, 1, 2}
    assert all(one.index(SUSPEND) < one.index(RESUME) for one in orders)


def test_no_two_prompts_begin_alike() -> None:
    pieces = prompts(range(40_000), 4097, first=0, count=50)
    assert {len(piece) for piece in pieces} == {4097}
    assert len({piece[0] for piece in pieces}) == 50


@pytest.mark.parametrize(
    "wrong", [{"sessions": 20}, {"context_tokens": 8192}, {"streams": 0}, {"interval_s": 0.0}]
)
def test_options_that_cannot_be_measured(wrong: dict[str, Any]) -> None:
    InterferenceOptions(Path("x"), Path("y")).require_possible()
    with pytest.raises(ConfigurationError):
        InterferenceOptions(Path("x"), Path("y"), **wrong).require_possible()


@pytest.mark.parametrize(
    ("text", "amount"), [("2GB", 2 * 10**9), ("1.5MiB", 3 << 19), ("7", 7), ("3 kB", 3000)]
)
def test_sizes(text: str, amount: int) -> None:
    assert size_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "GB", "2 elephants", "-1"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_bytes(text)
