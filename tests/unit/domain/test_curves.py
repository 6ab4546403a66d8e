from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sessiond.domain.curves import (
    ASSUMED_LOADS,
    ASSUMED_PREFILL,
    HALF_LIFE_S,
    LoadCurve,
    PrefillCurve,
    Trust,
    fit_load,
    fit_prefill,
)
from sessiond.domain.samples import LoadSample, PrefillSample, Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
GIB = 1 << 30
ASSUMED = ASSUMED_LOADS[Tier.NVME]
DISK = LoadCurve(Tier.NVME, 0.020, 2.5 * GIB, 0.3, 0.050)
MODEL = PrefillCurve(0.030, 0.0003, 2e-8, 0.5, 0.060)
SIZES = [MIB << step for step in range(11)]
SLICES = [(0, 256), (0, 1024), (0, 4096), (0, 16_000), (8000, 12_000), (15_000, 16_000)]


def loads(count: int, noise: float = 0.0, seed: int = 1, now: float = 1000.0) -> list[LoadSample]:
    """Return loads of a disk, of many sizes and beside many others."""
    chance = random.Random(seed)
    made = []
    for at in range(count):
        size, others = round(MIB * 2 ** chance.uniform(0, 10)), float(chance.randrange(4))
        waits = DISK.fixed_s + DISK.wait_s * min(1, others)
        exact = waits + size / DISK.bytes_per_s * (1 + DISK.slowdown * others)
        seconds = exact * math.exp(chance.gauss(0, noise))
        made.append(LoadSample(now - count + at, Tier.NVME, size, 1, seconds, others=others))
    return made


def prefills(count: int, noise: float = 0.0, seed: int = 1) -> list[PrefillSample]:
    """Return prefills of a model, of short and long ranges near and far."""
    chance = random.Random(seed)
    made = []
    for at in range(count):
        end = round(2 ** chance.uniform(7, 14))
        begin, others = chance.choice([0, 0, end // 2, end * 9 // 10]), float(chance.randrange(4))
        waits = MODEL.fixed_s + MODEL.wait_s * min(1, others)
        exact = waits + sum_of_costs(begin, end) * (1 + MODEL.slowdown * others)
        seconds = exact * math.exp(chance.gauss(0, noise))
        made.append(PrefillSample(1000.0 - count + at, begin, end, seconds, others))
    return made


def sum_of_costs(begin: int, end: int) -> float:
    """Return what the tokens cost one by one."""
    positions = (end - begin) * (begin + end) / 2
    return MODEL.per_token_s * (end - begin) + MODEL.per_token2_s * positions


def load_errors(curve: LoadCurve, truth: LoadCurve = DISK) -> list[float]:
    """Return by how much the estimates are off, as parts."""
    return [
        abs(curve.estimate(size, others).likely_s / truth.estimate(size, others).likely_s - 1)
        for size in SIZES
        for others in (0.0, 2.0)
    ]


def at(curve: LoadCurve, sample: LoadSample) -> float:
    """Return how long the curve says that a load takes which was measured."""
    return curve.estimate(sample.stored_bytes, sample.others).likely_s


def prefill_errors(curve: PrefillCurve, truth: PrefillCurve = MODEL) -> list[float]:
    """Return by how much the estimates are off, as parts."""
    return [
        abs(curve.estimate(*part).likely_s / truth.estimate(*part).likely_s - 1) for part in SLICES
    ]


def test_a_curve_of_exact_loads_is_found() -> None:
    curve = fit_load(loads(30), 1000.0, ASSUMED)
    assert max(load_errors(curve)) < 0.03
    assert curve.fixed_s == pytest.approx(DISK.fixed_s, rel=0.1)
    assert curve.bytes_per_s == pytest.approx(DISK.bytes_per_s, rel=0.05)
    assert curve.slowdown == pytest.approx(DISK.slowdown, rel=0.1)


def test_a_curve_of_exact_prefills_is_found() -> None:
    curve = fit_prefill(prefills(40), 1000.0)
    assert max(prefill_errors(curve)) < 0.03
    assert curve.per_token2_s == pytest.approx(MODEL.per_token2_s, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_averaged(seed: int) -> None:
    assert median(load_errors(fit_load(loads(64, 0.15, seed), 1000.0, ASSUMED))) < 0.1
    assert median(prefill_errors(fit_prefill(prefills(64, 0.15, seed), 1000.0))) < 0.12


@pytest.mark.parametrize("factor", [1000.0, 10.0, 0.1, 0.001])
@pytest.mark.parametrize("offset", range(3))
def test_a_fifth_of_wild_loads_hardly_moves_the_estimates(offset: int, factor: float) -> None:
    honest = loads(60, 0.1, seed=offset)
    wild = [
        replace(one, seconds=one.seconds * factor) if number % 5 == offset else one
        for number, one in enumerate(honest)
    ]
    calm = fit_load(honest, 1000.0, ASSUMED)
    assert max(load_errors(fit_load(wild, 1000.0, ASSUMED), calm)) < 0.1


@pytest.mark.parametrize("factor", [1000.0, 10.0, 0.1, 0.001])
def test_a_fifth_of_wild_prefills_hardly_moves_the_estimates(factor: float) -> None:
    honest = prefills(60, 0.1)
    wild = [
        replace(one, seconds=one.seconds * factor) if number % 5 == 2 else one
        for number, one in enumerate(honest)
    ]
    assert max(prefill_errors(fit_prefill(wild, 1000.0), fit_prefill(honest, 1000.0))) < 0.12


@settings(max_examples=15)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.001, 0.01, 0.1]),
    st.sampled_from([0.1 * GIB, GIB, 8 * GIB]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([0.0, 0.002, 0.02, 0.1]),
)
@example(1, 0.001, 8 * GIB, 0.05, 0.1)  # alone, small loads take a hundredth
def test_what_others_cost_is_found_whatever_it_is(
    seed: int, fixed_s: float, bytes_per_s: float, slowdown: float, wait_s: float
) -> None:
    truth = LoadCurve(Tier.NVME, fixed_s, bytes_per_s, slowdown, wait_s)
    honest = loads(64, 0.1, seed)
    made = [
        replace(one, seconds=one.seconds * truth_s / disk_s)
        for one in honest
        for truth_s, disk_s in [[at(curve, one) for curve in (truth, DISK)]]
    ]
    # Of 4,000 such cases the worst was 0.15: noise may look like a little more of one part.
    assert median(load_errors(fit_load(made, 1000.0, ASSUMED), truth)) < 0.25


def beside(sizes: Sequence[int], alone_s: float, wait_s: float) -> list[LoadSample]:
    """Loads beside none, one and three others, whose steps they wait for."""
    return [
        LoadSample(
            990.0 + at,
            Tier.NVME,
            size,
            1,
            alone_s + wait_s * min(1.0, others) + size / GIB,
            others=others,
        )
        for at in range(8)
        for size in sizes
        for others in (0.0, 1.0, 3.0)
    ]


def test_a_small_load_waits_for_others_and_a_large_one_hardly_longer() -> None:
    curve = fit_load(beside((MIB, 512 * MIB), 0.01, 0.06), 1000.0, ASSUMED)
    assert curve.wait_s == pytest.approx(0.06, rel=0.1)
    assert curve.slowdown < 0.02
    assert curve.estimate(MIB, 3.0).likely_s == pytest.approx(0.071, rel=0.1)
    assert curve.estimate(512 * MIB, 3.0).likely_s == pytest.approx(0.57, rel=0.1)


def test_the_few_that_were_alone_are_not_taken_for_wild() -> None:
    some = beside((12 * MIB, 24 * MIB, 48 * MIB), 0.004, 0.085)
    few = [one for number, one in enumerate(some) if one.others or number % 9 == 0]
    assert sum(not one.others for one in few) == len(few) / 7
    curve = fit_load(few, 1000.0, ASSUMED)
    assert curve.estimate(12 * MIB).likely_s == pytest.approx(0.016, rel=0.15)
    assert curve.estimate(12 * MIB, 1.0).likely_s == pytest.approx(0.101, rel=0.1)


def test_what_others_cost_is_as_assumed_until_there_were_some() -> None:
    alone = [LoadSample(990.0, Tier.NVME, size, 1, 0.01 + size / GIB) for size in SIZES]
    curve = fit_load(alone, 1000.0, ASSUMED)
    believed = ASSUMED.wait_s * ASSUMED.bytes_per_s  # the scale is measured, the shape is not
    assert curve.wait_s * curve.bytes_per_s == pytest.approx(believed, rel=0.01)
    assert curve.slowdown == pytest.approx(ASSUMED.slowdown, rel=0.01)


def test_most_new_times_are_within_the_bounds() -> None:
    curve = fit_load(loads(64, 0.2, seed=1), 1000.0, ASSUMED)
    fresh = loads(200, 0.2, seed=2)
    inside = sum(
        estimate.low_s <= one.seconds <= estimate.high_s
        for one in fresh
        for estimate in [curve.estimate(one.stored_bytes, one.others)]
    )
    assert 0.85 * len(fresh) <= inside < len(fresh)


def test_without_samples_it_is_what_was_assumed_and_says_so() -> None:
    assert fit_load([], 1000.0, ASSUMED) == ASSUMED
    assert fit_prefill([], 1000.0) == ASSUMED_PREFILL
    assert ASSUMED.trust.samples == ASSUMED_PREFILL.trust.samples == 0
    estimate = ASSUMED.estimate(GIB)
    assert estimate.high_s > 3 * estimate.likely_s


def test_one_sample_gives_the_scale_and_the_assumption_the_shape() -> None:
    (one,) = loads(1)
    only = replace(one, stored_bytes=256 * MIB, seconds=2.0, others=0.0, at_unix_s=1000.0)
    curve = fit_load([only], 1000.0, ASSUMED)
    assert curve.estimate(256 * MIB).likely_s == pytest.approx(2.0, rel=0.15)
    ratio = curve.estimate(GIB).likely_s / ASSUMED.estimate(GIB).likely_s
    assert ratio == pytest.approx(2.0 / ASSUMED.estimate(256 * MIB).likely_s, rel=0.15)


def test_samples_of_one_size_are_met_there_and_doubted_elsewhere() -> None:
    made = [
        LoadSample(990.0 + at, Tier.NVME, 64 * MIB, 1, 0.5 + 0.01 * (at % 3)) for at in range(10)
    ]
    curve = fit_load(made, 1000.0, ASSUMED)
    assert curve.estimate(64 * MIB).likely_s == pytest.approx(0.51, rel=0.05)
    here, there = curve.estimate(64 * MIB), curve.estimate(4 * GIB)
    assert there.high_s / there.likely_s > 2 * here.high_s / here.likely_s
    below = curve.estimate(MIB)
    assert below.high_s / below.likely_s > here.high_s / here.likely_s


def test_prefills_beyond_what_was_seen_are_doubted() -> None:
    curve = fit_prefill([PrefillSample(1000.0, 0, 1024, 0.5)] * 9, 1000.0)
    here = curve.estimate(0, 1024)
    for part in ((0, 16_384), (15_360, 16_384), (0, 16)):
        there = curve.estimate(*part)
        assert there.high_s / there.likely_s > 1.2 * here.high_s / here.likely_s


def test_no_tokens_take_no_time() -> None:
    assert MODEL.estimate(100, 100).high_s == 0.0
    assert MODEL.estimate(100, 50).likely_s == 0.0


def test_the_cost_of_a_token_grows_with_its_position() -> None:
    first, last = MODEL.seconds(0, 1024), MODEL.seconds(15_360, 16_384)
    assert last - first == pytest.approx(MODEL.per_token2_s * 1024 * 15_360)
    assert first == pytest.approx(MODEL.fixed_s + sum_of_costs(0, 1024))


def test_newer_samples_weigh_more() -> None:
    old = loads(30, 0.05)
    slow = [replace(one, at_unix_s=0.0) for one in old]
    fast = [replace(one, seconds=one.seconds / 4, at_unix_s=4 * HALF_LIFE_S) for one in old[:10]]
    curve = fit_load([*slow, *fast], 4 * HALF_LIFE_S, ASSUMED)
    quarter = LoadCurve(
        Tier.NVME, DISK.fixed_s / 4, DISK.bytes_per_s * 4, DISK.slowdown, DISK.wait_s / 4
    )
    assert median(load_errors(curve, quarter)) < 0.1


def test_what_grows_old_is_doubted_and_at_last_forgotten() -> None:
    made = [replace(one, seconds=50 * one.seconds) for one in loads(20, 0.05)]
    widths, times = [], []
    for age in (0.0, 4.0, 8.0, 40.0, 1e9):
        curve = fit_load(made, 1000.0 + age * HALF_LIFE_S, ASSUMED)
        estimate = curve.estimate(64 * MIB)
        widths.append(estimate.high_s / estimate.likely_s)
        times.append(estimate.likely_s)
    assert widths == sorted(widths)
    assert widths[-1] > 2 * widths[0]
    assert times == sorted(times, reverse=True)
    assert times[1] > 0.8 * times[0]  # not soon
    assert times[-1] == pytest.approx(times[-2], rel=0.01)


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            LoadSample,
            st.floats(0, 1e10),
            st.just(Tier.NVME),
            st.integers(0, 1 << 61),
            st.just(1),
            st.floats(1e-9, 1e12),
            st.just(0.0),
            st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=6,
    ),
    st.floats(0, 1e10),
)
def test_no_load_is_too_odd(made: list[LoadSample], now_unix_s: float) -> None:
    curve = fit_load(made, now_unix_s, ASSUMED)
    assert curve.fixed_s >= 0
    assert 0 < curve.bytes_per_s < math.inf
    for size in (0, MIB, 1 << 61):
        estimate = curve.estimate(size)
        assert 0 <= estimate.low_s <= estimate.likely_s <= estimate.high_s < math.inf
        assert curve.estimate(2 * size).likely_s >= estimate.likely_s


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            lambda begin, tokens, seconds: PrefillSample(1.0, begin, begin + tokens, seconds),
            st.integers(0, 1 << 40),
            st.integers(1, 1 << 40),
            st.floats(1e-9, 1e12),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_prefill_is_too_odd(made: list[PrefillSample]) -> None:
    curve = fit_prefill(made, 1.0)
    assert min(curve.fixed_s, curve.per_token_s, curve.per_token2_s) >= 0
    for begin, end in ((0, 1), (0, 4096), (4096, 8192)):
        estimate = curve.estimate(begin, end)
        assert 0 <= estimate.low_s <= estimate.likely_s <= estimate.high_s < math.inf
    assert curve.seconds(0, 8192) >= curve.seconds(0, 4096)


def test_a_curve_made_by_hand_has_no_bad_sizes() -> None:
    known = Trust(samples=1, weight=1.0)
    bare = PrefillCurve(0.0, 0.0, 0.0, trust=known)
    assert bare.estimate(0, 10).likely_s == 0.0
    assert PrefillCurve(0.0, 0.1, 0.0, trust=known).estimate(0, 10).likely_s == 1.0
    assert LoadCurve(Tier.RAM, 0.0, 1.0, trust=known).estimate(0).likely_s == 0.0


def test_json() -> None:
    assert DISK.as_json()["tier"] == "nvme"
    assert MODEL.as_json()["per_token2_s"] == MODEL.per_token2_s
