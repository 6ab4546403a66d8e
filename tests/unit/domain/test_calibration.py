from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.calibration import ASSUMED, Calibration, read_calibration
from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.samples import MOST_SAMPLES, LoadSample, PrefillSample, Tier

LOAD = LoadSample(5.0, Tier.NVME, 1 << 20, 256, 0.01)
PREFILL = PrefillSample(5.0, 0, 256, 0.2)


def filled() -> Calibration:
    calibration = Calibration()
    for at in range(3 * MOST_SAMPLES):
        now = 10.0 + at
        for tier in (Tier.RAM, Tier.NVME):
            calibration = calibration.with_load(replace(LOAD, at_unix_s=now, tier=tier))
        calibration = calibration.with_prefill(replace(PREFILL, at_unix_s=now))
    return calibration


def test_memory_is_bounded_for_each_curve() -> None:
    calibration = filled()
    assert len(calibration.loads) == 2 * MOST_SAMPLES
    assert len(calibration.prefills) == MOST_SAMPLES
    assert calibration.prefills[-1].at_unix_s == 10.0 + 3 * MOST_SAMPLES - 1


def test_json_round_trip() -> None:
    calibration = filled()
    reading = read_calibration(json.loads(canonical_json(calibration.as_json())))
    assert reading.dropped == 0
    assert set(reading.calibration.loads) == set(calibration.loads)
    assert reading.calibration.prefills == calibration.prefills
    again = read_calibration(json.loads(canonical_json(reading.calibration.as_json())))
    assert again == reading


def test_what_is_no_sample_is_dropped_and_counted() -> None:
    value = Calibration((LOAD,), (PREFILL,)).as_json()
    value["loads"] = [*value["loads"], {}, 5, {**LOAD.as_json(), "seconds": -1}]  # type: ignore[misc]
    value["prefills"] = [None, *value["prefills"]]  # type: ignore[misc]
    reading = read_calibration(value)
    assert reading.calibration == Calibration((LOAD,), (PREFILL,))
    assert reading.dropped == 4


def test_a_file_that_is_too_long_is_cut() -> None:
    value: dict[str, Any] = {"version": 1, "loads": [LOAD.as_json()] * 5000, "prefills": []}
    reading = read_calibration(value)
    assert len(reading.calibration.loads) == MOST_SAMPLES


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        {},
        {"version": 2, "loads": [], "prefills": []},
        {"version": 1, "loads": []},
        {"version": 1, "loads": {}, "prefills": []},
        {"version": 1, "loads": [], "prefills": "none"},
    ],
)
def test_what_is_no_calibration_is_refused(value: JsonValue) -> None:
    with pytest.raises(InvalidInputError):
        read_calibration(value)


def test_an_unsound_sample_is_left_out() -> None:
    calibration = Calibration().with_load(replace(LOAD, seconds=0.0))
    assert calibration.with_prefill(replace(PREFILL, to_token=0)) == Calibration()


def test_curves_come_from_the_samples_of_each_tier() -> None:
    calibration = Calibration().with_load(LOAD).with_prefill(PREFILL)
    curves = calibration.curves(5.0)
    assert {tier: curve.trust.samples for tier, curve in curves.loads.items()} == {
        Tier.VRAM: 0,
        Tier.RAM: 0,
        Tier.NVME: 1,
        Tier.ARCHIVE: 0,
    }
    assert curves.prefill.trust.samples == 1
    assert Calibration().curves(5.0) == ASSUMED
    shown = json.loads(canonical_json(curves.as_json()))
    assert [curve["tier"] for curve in shown["loads"]] == ["vram", "ram", "nvme", "archive"]


def test_what_a_probe_assumes_counts_until_something_is_measured() -> None:
    fast = replace(ASSUMED.loads[Tier.NVME], bytes_per_s=7e9)
    assumed = replace(ASSUMED, loads={**ASSUMED.loads, Tier.NVME: fast})
    assert Calibration().curves(5.0, assumed).loads[Tier.NVME] == fast
    curves = Calibration().with_load(LOAD).curves(5.0, assumed)
    assert curves.loads[Tier.NVME].trust.samples == 1


SAMPLES = st.lists(
    st.builds(
        LoadSample,
        st.integers(1, 200).map(float),
        st.sampled_from([Tier.RAM, Tier.NVME]),
        st.sampled_from([1, 1 << 10, 1 << 20]),
        st.just(256),
        st.sampled_from([0.1, 0.2]),
    ),
    max_size=100,
)
PREFILLS = st.lists(
    st.builds(
        PrefillSample, st.integers(1, 200).map(float), st.just(0), st.integers(1, 9), st.just(1.0)
    ),
    max_size=100,
)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """Return what a daemon knows after some time."""
    known = Calibration()
    for load in draw(SAMPLES):
        known = known.with_load(load)
    for prefill in draw(PREFILLS):
        known = known.with_prefill(prefill)
    if draw(st.booleans()):
        known = known.without_loads(Tier.NVME, float(draw(st.integers(1, 200))))
    return known


@settings(max_examples=40)
@given(calibrations(), calibrations())
def test_what_two_know_is_the_same_whoever_adds_it(one: Calibration, other: Calibration) -> None:
    both = one.merged_with(other)
    assert both == other.merged_with(one)
    assert both.merged_with(one) == both == both.merged_with(other)
    assert set(both.loads) <= {*one.loads, *other.loads}
    assert set(both.prefills) <= {*one.prefills, *other.prefills}
    since = both.loads_since_unix_s.get(Tier.NVME, 0.0)
    assert all(load.at_unix_s >= since for load in both.loads if load.tier is Tier.NVME)
    written = json.loads(canonical_json(both.as_json()))
    assert read_calibration(written).calibration == both


def test_what_an_earlier_version_wrote_is_read() -> None:
    value = Calibration((LOAD,), (PREFILL,)).as_json()
    del value["loads_since_unix_s"]
    assert read_calibration(value).calibration == Calibration((LOAD,), (PREFILL,))
    odd_values: list[JsonValue] = ["soon", [], {"nvme": "soon"}, {"tape": 5.0}, {"nvme": -1}]
    for odd in odd_values:
        read = read_calibration({**value, "loads_since_unix_s": odd})
        assert read.calibration.loads == (LOAD,)


def test_what_comes_from_the_future_keeps_out_nothing_that_is_measured() -> None:
    """A clock that was years ahead, and was put right."""
    ahead = replace(LOAD, at_unix_s=1e9), replace(PREFILL, at_unix_s=1e9)
    known = Calibration().with_load(ahead[0]).with_prefill(ahead[1])
    known = known.without_loads(Tier.NVME, 1e9).without_loads(Tier.RAM, 3.0)
    assert known.as_of(1e9) is known
    now = known.as_of(LOAD.at_unix_s)
    assert now == Calibration(loads_since_unix_s={Tier.RAM: 3.0})
    assert now.with_load(LOAD).loads == (LOAD,)


def test_a_recovered_tier_begins_anew() -> None:
    slow = [replace(LOAD, at_unix_s=float(at), seconds=5.0) for at in range(20)]
    other = replace(LOAD, tier=Tier.RAM)
    calibration = Calibration((other, *slow)).with_load(replace(LOAD, at_unix_s=30.0))
    outvoted = calibration.curves(30.0).loads[Tier.NVME].estimate(1 << 20).likely_s
    assert outvoted > 1.0
    anew = calibration.without_loads(Tier.NVME, 30.0)
    assert anew.loads == (other, replace(LOAD, at_unix_s=30.0))
    assert anew.curves(30.0).loads[Tier.NVME].estimate(1 << 20).likely_s < 0.02
