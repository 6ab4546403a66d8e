from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError
from sessiond.store import reading
from sessiond.store.buffers import HUGE_PAGE_BYTES, Scratch
from sessiond.store.fileio import REAL_OPS
from sessiond.store.format import ALIGNMENT_BYTES
from sessiond.store.reading import Frame, plan_runs, read_blocks, use_direct_io
from sessiond.testing.files import FaultyOps


@st.composite
def frame_lists(draw: st.DrawFn) -> list[Frame]:
    offset, frames = ALIGNMENT_BYTES, []
    for place in range(draw(st.integers(0, 12))):
        offset += ALIGNMENT_BYTES * draw(st.sampled_from([0, 0, 0, 1, 3]))
        frames.append(Frame(place, offset, draw(st.integers(1, 5 * ALIGNMENT_BYTES))))
        offset = frames[-1].end_bytes
    return draw(st.permutations(frames))


@given(frame_lists(), st.integers(1, 12))
def test_runs_hold_every_frame_once_in_whole_adjacent_blocks(
    frames: list[Frame], limit_blocks: int
) -> None:
    limit = limit_blocks * ALIGNMENT_BYTES
    runs = plan_runs(frames, limit)
    found = [frame for run in runs for frame in run.frames]
    assert found == sorted(frames, key=lambda frame: frame.offset_bytes)
    for run in runs:
        assert run.size_bytes % ALIGNMENT_BYTES == 0
        assert run.size_bytes <= limit or len(run.frames) == 1
        covered = sum(frame.end_bytes - frame.offset_bytes for frame in run.frames)
        assert covered == run.size_bytes  # nothing between its frames


@given(frame_lists())
def test_runs_are_as_long_as_they_may(frames: list[Frame]) -> None:
    limit = 8 * ALIGNMENT_BYTES
    runs = plan_runs(frames, limit)
    for left, right in pairwise(runs):
        adjacent = right.offset_bytes == left.offset_bytes + left.size_bytes
        first = right.frames[0]
        assert not adjacent or first.end_bytes - left.offset_bytes > limit


def test_scratch_memory_begins_at_a_huge_page_and_is_reused() -> None:
    scratch = Scratch()
    first = scratch.get(100)
    assert first.ctypes.data % HUGE_PAGE_BYTES == 0
    assert scratch.get(50).ctypes.data == first.ctypes.data
    assert len(scratch.get(HUGE_PAGE_BYTES + 1)) == HUGE_PAGE_BYTES + 1


def test_a_file_that_ends_early_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(ALIGNMENT_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(StoreCorruptError):
            read_blocks(REAL_OPS, fd, Scratch(), 0, 2 * ALIGNMENT_BYTES)
    finally:
        os.close(fd)


@pytest.fixture
def fresh_probe(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    known: dict[int, bool] = {}
    monkeypatch.setattr(reading, "_direct_by_device", known)
    return known


def open_flags(fd: int) -> int:
    return int(Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)


def test_direct_io_is_asked_for_once_per_file_system(
    tmp_path: Path, fresh_probe: dict[int, bool]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(ALIGNMENT_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        ops = FaultyOps()
        ops.fail("pread", errno.EINVAL)
        use_direct_io(ops, fd)
        use_direct_io(ops, fd)  # would work now, but is not asked again
        assert fresh_probe == {path.stat().st_dev: False}
        assert not open_flags(fd) & os.O_DIRECT
    finally:
        os.close(fd)


def test_direct_io_is_used_where_it_works(tmp_path: Path, fresh_probe: dict[int, bool]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(ALIGNMENT_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        use_direct_io(REAL_OPS, fd)
        assert bool(open_flags(fd) & os.O_DIRECT) is fresh_probe[path.stat().st_dev]
    finally:
        os.close(fd)


def test_a_failing_disk_is_no_answer_about_direct_io(
    tmp_path: Path, fresh_probe: dict[int, bool]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(ALIGNMENT_BYTES))
    fd = os.open(path, os.O_RDONLY)
    try:
        ops = FaultyOps()
        ops.fail("pread", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            use_direct_io(ops, fd)
        assert fresh_probe == {}
    finally:
        os.close(fd)
