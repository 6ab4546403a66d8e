from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sessiond.store.format import ALIGNMENT_BYTES
from sessiond.store.readahead import ReadRun, read_runs
from sessiond.store.reading import Frame, Run
from sessiond.testing.files import FaultyOps

BLOCKS = 20
RUNS = [Run((Frame(place, place * ALIGNMENT_BYTES, ALIGNMENT_BYTES),)) for place in range(BLOCKS)]


class Opened(NamedTuple):
    """A file to read."""

    ops: FaultyOps
    fd: int

    def read(self, runs: Sequence[Run], *, ahead: bool) -> Generator[ReadRun, None, None]:
        return read_runs(self.ops, self.fd, iter(runs), ahead=ahead)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([place]) * ALIGNMENT_BYTES for place in range(BLOCKS)))
    fd = os.open(path, os.O_RDONLY)
    yield Opened(FaultyOps(), fd)
    os.close(fd)


@pytest.mark.parametrize("overlap", [False, True])
def test_every_run_comes_once_in_order_with_its_bytes(opened: Opened, *, overlap: bool) -> None:
    for count in (0, 1, 2, BLOCKS):
        found = [
            (read.run, bytes(np.asarray(read.data)))
            for read in opened.read(RUNS[:count], ahead=overlap)
        ]
        assert [run for run, _ in found] == RUNS[:count]
        for place, (_, data) in enumerate(found):
            assert data == bytes([place]) * ALIGNMENT_BYTES


def test_a_failure_is_that_runs_own(opened: Opened) -> None:
    opened.ops.fail("pread", errno.EIO, skip=3)
    failed = [
        read.run.offset_bytes
        for read in opened.read(RUNS, ahead=True)
        if isinstance(read.data, Exception)
    ]
    assert failed == [3 * ALIGNMENT_BYTES]


def test_a_run_beyond_the_end_is_an_error_and_not_a_short_read(
    opened: Opened,
) -> None:
    beyond = Run((Frame(0, BLOCKS * ALIGNMENT_BYTES, 1),))
    read = opened.read([RUNS[0], beyond], ahead=True)
    assert [isinstance(one.data, Exception) for one in read] == [False, True]


def test_leaving_early_waits_for_the_read_that_is_under_way(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target is memory that the thread uses again."""
    under_way, go_on, done = threading.Event(), threading.Event(), threading.Event()
    pread = opened.ops.pread

    def slow(fd: int, buffer: memoryview, offset_bytes: int) -> int:
        if offset_bytes:
            under_way.set()
            assert go_on.wait(10)
            done.set()
        return pread(fd, buffer, offset_bytes)

    monkeypatch.setattr(opened.ops, "pread", slow)
    with contextlib.closing(opened.read(RUNS, ahead=True)) as runs:
        next(runs)
        assert under_way.wait(10)
        threading.Timer(0.05, go_on.set).start()
    assert done.is_set()


def test_threads_that_read_at_once_do_not_share_memory(
    opened: Opened,
) -> None:
    wrong: list[int] = []

    def work() -> None:
        for _ in range(10):
            for place, read in enumerate(opened.read(RUNS, ahead=True)):
                if bytes(np.asarray(read.data)) != bytes([place]) * ALIGNMENT_BYTES:
                    wrong.append(place)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_that_share_the_runs_read_each_of_them_once(opened: Opened) -> None:
    runs = iter(RUNS)
    found: list[int] = []

    def work() -> None:
        for read in read_runs(opened.ops, opened.fd, runs, ahead=True):
            place = read.run.offset_bytes // ALIGNMENT_BYTES
            assert bytes(np.asarray(read.data)) == bytes([place]) * ALIGNMENT_BYTES
            found.append(place)

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(work) for _ in range(4)]:
            one.result()
    assert sorted(found) == list(range(BLOCKS))
