from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sessiond.store.format import ALIGNMENT_BYTES
from sessiond.store.readahead import ReadAhead
from sessiond.store.reading import Frame, Run
from sessiond.testing.files import FaultyOps

BLOCKS = 20
RUNS = [Run((Frame(place, place * ALIGNMENT_BYTES, ALIGNMENT_BYTES),)) for place in range(BLOCKS)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ReadAhead, FaultyOps]]:
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([place]) * ALIGNMENT_BYTES for place in range(BLOCKS)))
    fd = os.open(path, os.O_RDONLY)
    ops = FaultyOps()
    ahead = ReadAhead(ops, fd)
    yield ahead, ops
    ahead.close()
    os.close(fd)


@pytest.mark.parametrize("overlap", [False, True])
def test_every_run_comes_once_in_order_with_its_bytes(
    opened: tuple[ReadAhead, FaultyOps], *, overlap: bool
) -> None:
    ahead, _ = opened
    for count in (0, 1, 2, BLOCKS):
        found = [
            (run, bytes(np.asarray(data))) for run, data in ahead.read(RUNS[:count], ahead=overlap)
        ]
        assert [run for run, _ in found] == RUNS[:count]
        for place, (_, data) in enumerate(found):
            assert data == bytes([place]) * ALIGNMENT_BYTES


def test_a_failure_is_that_runs_own(opened: tuple[ReadAhead, FaultyOps]) -> None:
    ahead, ops = opened
    ops.fail("pread", errno.EIO, skip=3)
    failed = [
        run.offset_bytes
        for run, data in ahead.read(RUNS, ahead=True)
        if isinstance(data, Exception)
    ]
    assert failed == [3 * ALIGNMENT_BYTES]


def test_a_run_beyond_the_end_is_an_error_and_not_a_short_read(
    opened: tuple[ReadAhead, FaultyOps],
) -> None:
    ahead, _ = opened
    beyond = Run((Frame(0, BLOCKS * ALIGNMENT_BYTES, 1),))
    assert [
        isinstance(data, Exception) for _, data in ahead.read([RUNS[0], beyond], ahead=True)
    ] == [
        False,
        True,
    ]


def test_leaving_early_waits_for_the_read_that_is_under_way(
    opened: tuple[ReadAhead, FaultyOps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target is memory that the thread uses again."""
    ahead, ops = opened
    under_way, go_on, done = threading.Event(), threading.Event(), threading.Event()
    pread = ops.pread

    def slow(fd: int, buffer: memoryview, offset_bytes: int) -> int:
        if offset_bytes:
            under_way.set()
            assert go_on.wait(10)
            done.set()
        return pread(fd, buffer, offset_bytes)

    monkeypatch.setattr(ops, "pread", slow)
    with contextlib.closing(ahead.read(RUNS, ahead=True)) as runs:
        next(runs)
        assert under_way.wait(10)
        threading.Timer(0.05, go_on.set).start()
    assert done.is_set()


def test_threads_that_read_at_once_do_not_share_memory(
    opened: tuple[ReadAhead, FaultyOps],
) -> None:
    ahead, _ = opened
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            for place, (_, data) in enumerate(ahead.read(RUNS, ahead=True)):
                if bytes(np.asarray(data)) != bytes([place]) * ALIGNMENT_BYTES:
                    wrong.append(place)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
