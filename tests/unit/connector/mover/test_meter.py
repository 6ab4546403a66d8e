from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector.mover import meter
from sessiond.connector.mover.meter import MeteredOps, Rate

MIB = 1 << 20
ASSUMED = 5e9


class Clock:
    """A time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    return clock


def transfer(rate: Rate, clock: Clock, mib: int, seconds: float, inside: int = 0) -> None:
    """Move some bytes; *inside*: so many MiB are moved by another thread meanwhile."""

    def move() -> int:
        if inside:
            transfer(rate, clock, inside, seconds / 2)
        clock.now_s += seconds / 2 if inside else seconds
        return mib * MIB

    rate.measure(move)


def test_little_is_no_measurement(clock: Clock) -> None:
    rate = Rate()
    transfer(rate, clock, mib=15, seconds=1)
    assert rate.bytes_s(ASSUMED) == ASSUMED


def test_a_rate_is_bytes_by_the_time_that_the_device_was_busy(clock: Clock) -> None:
    rate = Rate()
    transfer(rate, clock, mib=20, seconds=0.1)
    clock.now_s += 60  # nobody asked it for anything
    transfer(rate, clock, mib=20, seconds=0.1)
    assert rate.bytes_s(ASSUMED) == pytest.approx(200 * MIB)


def test_transfers_at_once_share_their_time(clock: Clock) -> None:
    rate = Rate()
    transfer(rate, clock, mib=20, seconds=0.2, inside=20)
    assert rate.bytes_s(ASSUMED) == pytest.approx(200 * MIB)


def test_what_was_long_ago_counts_less(clock: Clock) -> None:
    rate = Rate()
    transfer(rate, clock, mib=2000, seconds=2)
    for _ in range(10):
        transfer(rate, clock, mib=100, seconds=1)
    assert rate.bytes_s(ASSUMED) == pytest.approx(100 * MIB, rel=0.05)


def test_a_transfer_that_fails_moved_nothing(clock: Clock) -> None:
    rate = Rate()
    transfer(rate, clock, mib=20, seconds=0.1)

    def fail() -> int:
        clock.now_s += 0.1
        raise OSError("failed")

    with pytest.raises(OSError, match="failed"):
        rate.measure(fail)
    assert rate.bytes_s(ASSUMED) == pytest.approx(100 * MIB)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_real_transfers_are_measured_if_they_are_large(opened: int) -> None:
    ops = MeteredOps()
    block = memoryview(bytearray(MIB))
    for place in range(20):
        ops.pwrite(opened, block[: MIB // 2], place * MIB)
    assert ops.write_bytes_s(ASSUMED) == ASSUMED
    began_s = time.perf_counter()
    for place in range(20):
        assert ops.pwrite(opened, block, place * MIB) == MIB
        assert ops.pread(opened, block, place * MIB) == MIB
    slowest = 20 * MIB / (time.perf_counter() - began_s)
    assert ops.write_bytes_s(ASSUMED) > slowest
    assert ops.read_bytes_s(ASSUMED) > slowest
    assert ops.read_bytes_s(ASSUMED) != ASSUMED
