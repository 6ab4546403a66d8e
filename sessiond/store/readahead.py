"""Reading one step ahead of the work on what was read."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreCorruptError
from sessiond.store.buffers import Scratch, thread_frames
from sessiond.store.reading import Run, read_blocks

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sessiond.store.fileio import FileOps

#: Reads in flight for one segment, whatever the number of its callers.
READ_AHEAD_THREADS = 4

#: The bytes of a run, or why they could not be read.
RunData: TypeAlias = npt.NDArray[np.uint8] | Exception


class ReadAhead:
    """Reads the next run of an open file while the caller works on the one before.

    Without it a thread that decodes would leave the device idle, and one that reads, a core;
    and more threads than cores only get into each other's way.
    """

    def __init__(self, ops: FileOps, fd: int) -> None:
        """Read from *fd*, which the caller keeps open until :meth:`close`."""
        self._ops, self._fd = ops, fd
        self._pool = ThreadPoolExecutor(READ_AHEAD_THREADS, "sessiond-read")

    def read(
        self, runs: Sequence[Run], *, ahead: bool
    ) -> Generator[tuple[Run, RunData], None, None]:
        """Yield each run with its bytes; *ahead* reads the next one meanwhile.

        The bytes lie in memory of the calling thread, and are valid until the next run is asked
        for. An iterator that is not exhausted must be closed before the thread reads again.
        """
        pending: Future[RunData] | None = None
        try:
            for place, run in enumerate(runs):
                data = pending.result() if pending else self._read(run, thread_frames(0))
                pending = None
                if ahead and place + 1 < len(runs):
                    buffer = thread_frames((place + 1) % 2)
                    pending = self._pool.submit(self._read, runs[place + 1], buffer)
                yield run, data
        finally:
            if pending is not None:
                wait([pending])  # it still writes into this thread's memory

    def close(self) -> None:
        """End the reading threads; nobody may be reading."""
        self._pool.shutdown()

    def _read(self, run: Run, buffer: Scratch) -> RunData:
        try:
            return read_blocks(self._ops, self._fd, buffer, run.offset_bytes, run.size_bytes)
        except (OSError, StoreCorruptError) as error:
            return error
