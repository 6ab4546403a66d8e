"""The arithmetic of the benchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Rate:
    """How fast one contestant was, over the rounds."""

    median_bytes_s: float
    least_bytes_s: float
    most_bytes_s: float
    samples_bytes_s: tuple[float, ...]


def rate(samples_bytes_s: Sequence[float]) -> Rate:
    """Return the median and the spread of one contestant's samples, at least one."""
    return Rate(
        statistics.median(samples_bytes_s),
        min(samples_bytes_s),
        max(samples_bytes_s),
        tuple(samples_bytes_s),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least *percent* of all values do not exceed.

    :raises ValueError: there are no values, or no such percentage.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError("A percentile needs values, and a percentage above 0 up to 100.")
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios of samples that were taken in the same round.

    What slows the machine for a while slows both sides of a pair, and cancels out.

    :raises ValueError: the two have not the same number of samples, or none.
    """
    if len(over) != len(under) or not over:
        raise ValueError("Ratios need pairs of samples.")
    return statistics.median(left / right for left, right in zip(over, under, strict=True))


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return *items* in the same order, beginning somewhere else each time."""
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]


#: Ratio: what is measured, and what it is measured against.
STORE_RATIOS: Mapping[str, tuple[str, str]] = {
    "restore_raw_vs_device_read": ("restore_raw", "device_read"),
    "restore_compressed_vs_device_read": ("restore_planar-zstd", "device_read"),
    "restore_vs_vllm_fs": ("restore_planar-zstd", "restore_vllm-fs"),
    "suspend_raw_vs_device_write": ("suspend_raw", "device_write"),
    "suspend_compressed_vs_device_write": ("suspend_planar-zstd", "device_write"),
}
#: The same for what no requirement names; left out where one side was not measured.
FURTHER_STORE_RATIOS: Mapping[str, tuple[str, str]] = {
    "restore_raw_vs_vllm_fs": ("restore_raw", "restore_vllm-fs"),
    "restore_vs_vllm_fs_many_jobs": ("restore_planar-zstd", "restore_vllm-fs-many-jobs"),
    "restore_vs_safetensors": ("restore_planar-zstd", "restore_safetensors"),
    "restore_zstd_vs_device_read": ("restore_zstd", "device_read"),
    "suspend_zstd_vs_device_write": ("suspend_zstd", "device_write"),
}


def ratios(
    pairs: Mapping[str, tuple[str, str]], samples: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return those ratios both sides of which were measured."""
    return {
        name: median_ratio(samples[over], samples[under])
        for name, (over, under) in pairs.items()
        if over in samples and under in samples
    }


@dataclass(frozen=True)
class Added:
    """How much longer one way took than another, over pairs that were taken together."""

    count: int
    median_ms: float
    p90_ms: float
    #: Half of the differences lie between these two.
    low_ms: float
    high_ms: float
    #: Of ten parts of the run: how far the median itself can be trusted.
    medians_ms: tuple[float, ...]


def added(before_s: Sequence[float], after_s: Sequence[float]) -> Added:
    """Return how much longer *after_s* is, pair by pair.

    :raises ValueError: the two have not the same number of samples, or none.
    """
    if len(before_s) != len(after_s) or not before_s:
        raise ValueError("Differences need pairs of samples.")
    found = [(after - before) * 1e3 for before, after in zip(before_s, after_s, strict=True)]
    size = -(-len(found) // 10)
    parts = [found[start : start + size] for start in range(0, len(found), size)]
    return Added(
        len(found),
        statistics.median(found),
        percentile(found, 90),
        percentile(found, 25),
        percentile(found, 75),
        tuple(map(statistics.median, parts)),
    )


@dataclass(frozen=True)
class Gaps:
    """The times between the tokens of other requests, in one kind of block."""

    count: int
    median_s: float
    p99_s: float
    longest_s: float


def gaps(values_s: Sequence[float]) -> Gaps:
    """Return what is reported of the times between tokens."""
    return Gaps(len(values_s), statistics.median(values_s), percentile(values_s, 99), max(values_s))
