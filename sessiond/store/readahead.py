"""Reading one step ahead of the work on what was read."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreCorruptError
from sessiond.store.buffers import Scratch, thread_frames
from sessiond.store.reading import Run, read_blocks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sessiond.store.fileio import FileOps

#: Reads in flight ahead of their callers, in the whole process.
READ_AHEAD_THREADS = 8
# Its threads are started when they are needed first. One for all files: they do nothing but wait
# for the device, and a process has many segments open.
_readers = ThreadPoolExecutor(READ_AHEAD_THREADS, "sessiond-read")

#: Reads that the device works on at once. On two cores, where a core is as fast as the device,
#: one after the other is faster than two or three at a time (by 7 and 10 % of its rate); the
#: devices of larger machines want more than one.
READS_AT_ONCE = max(1, (os.cpu_count() or 1) // 4)
_turns = threading.BoundedSemaphore(READS_AT_ONCE)

#: The bytes of a run, or why they could not be read.
RunData: TypeAlias = npt.NDArray[np.uint8] | Exception


@dataclass(frozen=True)
class ReadRun:
    """One run, as far as it could be read."""

    run: Run
    data: RunData
    buffer: Scratch  #: where *data* lies; free for other uses when the run is done with


def read_runs(
    ops: FileOps, fd: int, runs: Iterator[Run], *, ahead: bool
) -> Generator[ReadRun, None, None]:
    """Yield each run of an open file with its bytes.

    The bytes lie in memory of the calling thread, and are valid until the next run is asked
    for. An iterator that is not exhausted must be closed before the thread reads again, and
    before the file is closed.

    :param runs: may be shared: each thread gets the runs that it has asked for
    :param ahead: read the next run while the caller works on the one before. Without it a
        thread that decodes leaves the device idle, and one that reads, a core. It takes a
        second buffer.
    """
    pending: Future[RunData] | None = None
    buffer, other = thread_frames(0), thread_frames(1)
    run = next(runs, None)
    try:
        while run is not None:
            data = pending.result() if pending else _read(ops, fd, run, buffer)
            pending = None
            following = next(runs, None) if ahead else None
            if following is not None:
                pending = _readers.submit(_read, ops, fd, following, other)
            yield ReadRun(run, data, buffer)
            if ahead:
                run, buffer, other = following, other, buffer
            else:
                run = next(runs, None)
    finally:
        if pending is not None:
            wait([pending])  # it still writes into this thread's memory


def _read(ops: FileOps, fd: int, run: Run, buffer: Scratch) -> RunData:
    try:
        with _turns:
            return read_blocks(ops, fd, buffer, run.offset_bytes, run.size_bytes)
    except (OSError, StoreCorruptError) as error:
        return error
