from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.canonical import JsonValue
from sessiond.domain.samples import (
    MOST_SAMPLES,
    LoadSample,
    PrefillSample,
    Tier,
    keep,
    read_load,
    read_prefill,
)

LOAD = LoadSample(5.0, Tier.NVME, 1 << 20, 256, 0.01, 0.5, 1.5)
PREFILL = PrefillSample(5.0, 256, 1024, 0.2, 2.0)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def test_json_round_trip() -> None:
    assert read_load(json.loads(json.dumps(LOAD.as_json()))) == LOAD
    assert read_prefill(json.loads(json.dumps(PREFILL.as_json()))) == PREFILL


@pytest.mark.parametrize(
    "change",
    [
        {"tier": "tape"},
        {"tier": ["ram"]},
        {"tier": None},
        {"stored_bytes": -1},
        {"stored_bytes": 1.0},
        {"stored_bytes": True},
        {"stored_bytes": 10**400},
        {"tokens": -1},
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": 1e-300},
        {"seconds": "0.1"},
        {"seconds": 10**400},
        {"queue_s": -0.1},
        {"others": None},
        {"at_unix_s": -1.0},
        {"more": 1},
    ],
)
def test_what_is_no_load_is_not_read(change: dict[str, Any]) -> None:
    assert read_load({**LOAD.as_json(), **change}) is None


@pytest.mark.parametrize(
    "change",
    [{"from_token": 1024}, {"from_token": -1}, {"to_token": 10**30}, {"seconds": 0}, {"x": 1}],
)
def test_what_is_no_prefill_is_not_read(change: dict[str, Any]) -> None:
    assert read_prefill({**PREFILL.as_json(), **change}) is None


@pytest.mark.parametrize("name", ["at_unix_s", "tier", "stored_bytes", "seconds", "others"])
def test_a_load_has_all_of_its_fields(name: str) -> None:
    value = LOAD.as_json()
    del value[name]
    assert read_load(value) is None


@settings(max_examples=40)
@given(value=JSON)
def test_reading_anything_raises_nothing(value: JsonValue) -> None:
    assert read_load(value) is None
    assert read_prefill(value) is None


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(LOAD.as_json())), value=JSON)
def test_a_wrong_field_raises_nothing(name: str, value: JsonValue) -> None:
    read = read_load({**LOAD.as_json(), name: value})
    assert read is None or read.is_sound


def test_a_zero_of_seconds_may_be_an_integer() -> None:
    assert read_load({**LOAD.as_json(), "seconds": 1, "queue_s": 0}) is not None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 40)), max_size=150))
def test_of_many_the_newest_of_each_size_stay(made: list[tuple[float, int]]) -> None:
    samples = [replace(LOAD, at_unix_s=at, stored_bytes=size) for at, size in made]
    kept = keep(samples)
    assert len(kept) == min(len(samples), MOST_SAMPLES)
    assert list(kept) == sorted(kept, key=lambda one: one.at_unix_s)
    for size_class in {one.size_class for one in samples}:
        mine = [one for one in samples if one.size_class == size_class]
        stayed = [one.at_unix_s for one in kept if one.size_class == size_class]
        newest = sorted((one.at_unix_s for one in mine), reverse=True)[: len(stayed)]
        assert sorted(stayed, reverse=True) == newest


def test_many_of_one_size_do_not_push_out_the_few_of_another() -> None:
    few = [replace(LOAD, at_unix_s=at, stored_bytes=1 << 30) for at in (1.0, 2.0, 3.0)]
    kept: tuple[LoadSample, ...] = keep(few)
    for at in range(10, 500):
        kept = keep([*kept, replace(LOAD, at_unix_s=float(at))])
    assert [one for one in kept if one.stored_bytes == 1 << 30] == few
    assert kept[-1].at_unix_s == 499.0
    assert len(kept) == MOST_SAMPLES
