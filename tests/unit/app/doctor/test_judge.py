"""What the doctor makes of a machine and of measured rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.app.doctor.judge import Level, judge
from sessiond.app.doctor.measured import CodecRates, Facts, Rates, Stage, way_of, ways_of

GB = 1e9
SOUND = Facts(
    store_root="/srv/store",
    exists=True,
    is_ours=True,
    file_system="ext4",
    direct_io=True,
    free_bytes=100 << 30,
    total_bytes=200 << 30,
    floor_bytes=1 << 30,
    cores=8,
    usable_cores=8.0,
    load_average=0.5,
    huge_pages="madvise",
    kernels="numba",
    shm_free_bytes=8 << 30,
    memory_free_bytes=16 << 30,
    clock_offset_s=0.0,
    now_unix_s=1_800_000_000.0,
)
RAW = CodecRates("raw", 1.0, 20 * GB, 10 * GB)
PLANAR = CodecRates("planar-zstd", 0.67, 3 * GB, 2.5 * GB)
RATES = Rates(
    size_bytes=256 << 20,
    write_bytes_s=1.5 * GB,
    sync_s=0.005,
    read_bytes_s=2 * GB,
    scatter_bytes_s=10 * GB,
    copy_bytes_s=9 * GB,
    threads=2,
    codecs=(RAW, PLANAR),
)


def codes(facts: Facts, rates: Rates = RATES) -> dict[str, Level]:
    return {one.code: one.level for one in judge(facts, rates, ways_of(rates))}


def test_nothing_is_wrong_with_a_sound_machine() -> None:
    assert judge(SOUND, RATES, ways_of(RATES)) == ()


@pytest.mark.parametrize(
    ("changed", "code", "level"),
    [
        ({"exists": False, "is_ours": False}, "no_store", Level.NOTE),
        ({"is_ours": False}, "not_private", Level.PROBLEM),
        ({"file_system": "tmpfs", "direct_io": False}, "volatile", Level.PROBLEM),
        ({"file_system": "overlay"}, "container_layer", Level.PROBLEM),
        ({"file_system": "nfs4"}, "remote", Level.NOTE),
        ({"file_system": "fuse.sshfs"}, "remote", Level.NOTE),
        ({"direct_io": False}, "no_direct_io", Level.PROBLEM),
        ({"free_bytes": 1 << 30}, "no_room", Level.PROBLEM),
        ({"free_bytes": 2 << 30}, "little_room", Level.NOTE),
        ({"usable_cores": 1.5}, "few_cores", Level.PROBLEM),
        ({"usable_cores": 4.0}, "cpu_limit", Level.NOTE),
        ({"load_average": 13.0}, "busy", Level.NOTE),
        ({"kernels": "numpy"}, "slow_kernels", Level.NOTE),
        ({"huge_pages": "never"}, "no_huge_pages", Level.PROBLEM),
        ({"shm_free_bytes": 64 << 20}, "small_shm", Level.NOTE),
        ({"memory_free_bytes": 0}, "little_memory", Level.NOTE),
        ({"now_unix_s": 1000.0}, "clock_not_set", Level.PROBLEM),
        ({"clock_offset_s": -60.0}, "clocks_differ", Level.PROBLEM),
    ],
)
def test_each_fault_of_a_machine_is_found(changed: dict[str, Any], code: str, level: Level) -> None:
    assert codes(replace(SOUND, **changed)) == {code: level}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"read_bytes_s": 0.15 * GB}, {"slow_device"}),
        ({"sync_s": 0.5}, {"slow_sync"}),
        ({"copy_bytes_s": 0.05 * GB}, {"slow_restores"}),
        ({"read_bytes_s": 0.05 * GB}, {"slow_device", "slow_restores"}),
    ],
)
def test_each_slow_stage_is_found(changed: dict[str, Any], code: set[str]) -> None:
    assert codes(SOUND, replace(RATES, **changed)) == dict.fromkeys(code, Level.PROBLEM)


def test_problems_come_before_notes_and_say_what_to_do() -> None:
    facts = replace(SOUND, kernels="numpy", huge_pages="never", usable_cores=1.0, exists=False)
    found = judge(facts, RATES, ways_of(RATES))
    levels = [one.level for one in found]
    assert levels == sorted(levels, key=lambda level: level is Level.NOTE)
    assert {Level.PROBLEM, Level.NOTE} == set(levels)
    assert all(one.sentence.endswith(".") and one.hint for one in found)


@pytest.mark.parametrize(
    ("changed", "codec", "bytes_s", "bottleneck"),
    [
        ({}, RAW, 2 * GB, Stage.READ),
        # 0.67 bytes are read for each: the threads are slower.
        ({}, PLANAR, 2.5 * GB, Stage.DECODE),
        ({"read_bytes_s": 1 * GB}, PLANAR, 1 / 0.67 * GB, Stage.READ),
        ({"read_bytes_s": 90 * GB, "copy_bytes_s": 90 * GB}, RAW, 10 * GB, Stage.DELIVER),
        ({"copy_bytes_s": 1 * GB}, RAW, 1 * GB, Stage.COPY),
    ],
)
def test_the_slowest_of_what_overlaps_is_the_bottleneck(
    changed: dict[str, Any], codec: CodecRates, bytes_s: float, bottleneck: Stage
) -> None:
    if bottleneck is Stage.DELIVER:
        codec = replace(codec, decode_bytes_s=40 * GB)
    way = way_of(replace(RATES, **changed), codec)
    assert way.bottleneck is bottleneck
    assert way.bytes_s == pytest.approx(bytes_s)


def test_the_fastest_codec_comes_first() -> None:
    assert [way.codec for way in ways_of(RATES)] == ["planar-zstd", "raw"]
    fast_device = replace(RATES, read_bytes_s=8 * GB)
    assert [way.codec for way in ways_of(fast_device)] == ["raw", "planar-zstd"]


rate = st.floats(1e6, 1e12)
any_rates = st.builds(
    replace, st.just(RATES), read_bytes_s=rate, scatter_bytes_s=rate, copy_bytes_s=rate
)


@given(any_rates, st.builds(CodecRates, st.just("any"), st.floats(0.01, 1.0), rate, rate))
def test_no_restore_is_faster_than_any_of_its_stages(rates: Rates, codec: CodecRates) -> None:
    way = way_of(rates, codec)
    assert way.bytes_s <= min(way.stage_bytes_s.values()) * (1 + 1e-9)
    if way.bottleneck in (Stage.READ, Stage.COPY):
        assert way.bytes_s == pytest.approx(way.stage_bytes_s[way.bottleneck])
