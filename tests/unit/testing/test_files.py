from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from sessiond.store.fileio import DurableFile, FileOps, Publish
from sessiond.testing.files import (
    Crash,
    CrashingOps,
    FaultyOps,
    RecordingOps,
    count_steps,
    flip_byte,
)

if TYPE_CHECKING:
    from pathlib import Path


def write(ops: FileOps, folder: Path, data: bytes = b"data") -> None:
    fd = ops.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with DurableFile(ops, fd) as file:
            file.write(data, 0)
            file.publish(fd, "name", Publish.CREATE)
    finally:
        ops.close(fd)


def test_the_durable_write_is_these_steps_in_this_order(tmp_path: Path) -> None:
    ops = RecordingOps()
    write(ops, tmp_path)
    steps = [call for call, _ in ops.calls]
    assert steps == ["create", "pwrite", "sync", "link", "sync", "unlink"]
    assert count_steps(lambda other: write(other, make(tmp_path / "b"))) == len(steps)


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("power_failure", [False, True])
def test_a_crash_stops_everything_including_cleaning_up(
    tmp_path: Path, *, power_failure: bool
) -> None:
    left = []
    for step in range(6):
        ops = CrashingOps(step, power_failure=power_failure)
        folder = make(tmp_path / str(step))
        with pytest.raises(Crash):
            write(ops, folder)
        assert ops.crashed
        left.append(sorted(path.suffix or path.name for path in folder.iterdir()))
    assert left[:4] == [[], [".tmp"], [".tmp"], [".tmp"]]
    assert left[4] == ([".tmp"] if power_failure else [".tmp", "name"])  # linked, not yet synced
    assert left[5] == [".tmp", "name"]
    write(CrashingOps(6, power_failure=power_failure), make(tmp_path / "whole"))


def test_a_power_failure_empties_what_was_not_synced(tmp_path: Path) -> None:
    for step, expected in ((2, b""), (3, b"data")):
        folder = make(tmp_path / str(step))
        with pytest.raises(Crash):
            write(CrashingOps(step, power_failure=True), folder)
        (file,) = folder.iterdir()
        assert file.read_bytes() == expected


def test_a_power_failure_takes_folders_that_were_not_synced(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ops = CrashingOps(3, power_failure=True)
        ops.mkdir("kept", dir_fd=fd)
        ops.sync(fd)
        ops.mkdir("lost", dir_fd=fd)
        with pytest.raises(Crash):
            ops.unlink("kept", dir_fd=fd)
    finally:
        os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_crash_is_no_exception_that_cleanup_code_catches() -> None:
    assert not issubclass(Crash, Exception)


def test_faults_come_when_and_as_often_as_asked_for(tmp_path: Path) -> None:
    ops = FaultyOps()
    ops.fail("create", errno.EMFILE, skip=1, times=2, name_part="x")
    flags = os.O_CREAT | os.O_RDWR
    ops.close(ops.open(str(tmp_path / "y"), flags))
    ops.close(ops.open(str(tmp_path / "x1"), flags))
    for _ in range(2):
        with pytest.raises(OSError, match="Too many open files"):
            ops.open(str(tmp_path / "x2"), flags)
    ops.close(ops.open(str(tmp_path / "x2"), flags))


def test_short_calls_move_half(tmp_path: Path) -> None:
    ops = FaultyOps()
    fd = ops.open(str(tmp_path / "file"), os.O_CREAT | os.O_RDWR)
    try:
        ops.shorten(reads=1, writes=2)
        assert ops.pwrite(fd, bytes(100), 0) == 50
        assert ops.pwrite(fd, bytes(12288), 0) == 4096  # whole blocks, for direct I/O
        assert ops.pwrite(fd, bytes(100), 0) == 100
        assert ops.pread(fd, memoryview(bytearray(10)), 0) == 5
        assert ops.pread(fd, memoryview(bytearray(10)), 0) == 10
    finally:
        ops.close(fd)


@pytest.mark.parametrize(("offset", "place"), [(0, 0), (3, 3), (-1, 9), (-10, 0)])
def test_one_byte_is_flipped_and_back(tmp_path: Path, offset: int, place: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(10)))
    flip_byte(path, offset)
    changed = [index for index, byte in enumerate(path.read_bytes()) if byte != index]
    assert changed == [place]
    flip_byte(path, offset)
    assert path.read_bytes() == bytes(range(10))
