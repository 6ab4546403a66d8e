"""Reading frames: few large reads, direct where the file system allows it."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError
from sessiond.store.buffers import Scratch
from sessiond.store.fileio import FileOps, read_fully
from sessiond.store.format import ALIGNMENT_BYTES, align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

#: Adjacent frames are read together up to this size; beyond it nothing gets faster.
RUN_BYTES = 4 << 20


@dataclass(frozen=True)
class ReadPace:
    """How much memory a thread that reads may use to be fast, and how long it may take."""

    run_bytes: int = RUN_BYTES  #: adjacent frames are read together up to this size
    ahead: bool = True  #: read the next run while the one before is worked on
    until_s: float = math.inf  #: monotonic; from then on, no more runs are begun


DEFAULT_PACE = ReadPace()


@dataclass(frozen=True)
class Frame:
    """One frame that is wanted."""

    place: int  #: in the caller's list
    offset_bytes: int
    stored_bytes: int

    @property
    def end_bytes(self) -> int:
        """Where the frame's last block ends."""
        return self.offset_bytes + align_up(self.stored_bytes)


@dataclass(frozen=True)
class Run:
    """Frames that lie one after the other and are read in one go."""

    frames: tuple[Frame, ...]

    @property
    def offset_bytes(self) -> int:
        """Where the run begins."""
        return self.frames[0].offset_bytes

    @property
    def size_bytes(self) -> int:
        """The run's length, in whole blocks."""
        return self.frames[-1].end_bytes - self.offset_bytes


def plan_runs(frames: Sequence[Frame], run_bytes: int = RUN_BYTES) -> list[Run]:
    """Return the reads that bring all *frames*, in the order of the file.

    A run is longer than *run_bytes* only if its single frame is.
    """
    runs: list[Run] = []
    current: list[Frame] = []
    for frame in sorted(frames, key=lambda frame: frame.offset_bytes):
        joins = (
            current
            and frame.offset_bytes == current[-1].end_bytes
            and frame.end_bytes - current[0].offset_bytes <= run_bytes
        )
        if current and not joins:
            runs.append(Run(tuple(current)))
            current = []
        current.append(frame)
    if current:
        runs.append(Run(tuple(current)))
    return runs


def read_blocks(
    ops: FileOps, fd: int, scratch: Scratch, offset_bytes: int, size_bytes: int
) -> npt.NDArray[np.uint8]:
    """Return *size_bytes* from *offset_bytes* on, both whole blocks, in *scratch*'s memory.

    :raises StoreCorruptError: the file ends before.
    :raises OSError: the system could not read.
    """
    buffer = scratch.get(size_bytes)
    if read_fully(ops, fd, buffer.data, offset_bytes) != size_bytes:
        raise StoreCorruptError("The segment ends too early.")
    return buffer


_direct_by_device: dict[int, bool] = {}
_direct_lock = threading.Lock()


def use_direct_io(ops: FileOps, fd: int) -> None:
    """Let reads and writes of an open file pass the page cache by, if its file system can.

    Asked once per file system. From now on only whole blocks may be moved. The page cache is
    of no use here: a chunk is read once, into memory of ours that keeps it.
    """
    if direct_io_works(ops, fd):
        _set_direct(fd, on=True)


def direct_io_works(ops: FileOps, fd: int) -> bool:
    """Whether an open file's reads can pass the page cache by; asked once per file system."""
    device = os.fstat(fd).st_dev
    with _direct_lock:
        if device not in _direct_by_device:
            _direct_by_device[device] = _probe(ops, fd)
        return _direct_by_device[device]


def _probe(ops: FileOps, fd: int) -> bool:
    """Whether direct I/O works: some file systems take the flag and then fail the read."""
    try:
        _set_direct(fd, on=True)
        ops.pread(fd, Scratch().get(ALIGNMENT_BYTES).data, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        _set_direct(fd, on=False)
    return True


def _set_direct(fd: int, *, on: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
