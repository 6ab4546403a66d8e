"""Memory for moving bytes: reused per thread, in huge pages where the system has them.

Direct reads into scattered pages run at a third of the device's speed; into huge pages, at
all of it. The buffers are private: nobody reads what is in them but who filled them.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import numpy as np
import numpy.typing as npt

HUGE_PAGE_BYTES = 2 << 20


class Scratch:
    """A growing buffer that begins at a huge page's boundary. Not for several threads."""

    def __init__(self) -> None:
        self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def get(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the first *size_bytes*; what earlier calls returned may be overwritten."""
        if size_bytes > len(self._bytes):
            self._bytes = _huge_bytes(size_bytes)
        return self._bytes[:size_bytes]


def _huge_bytes(size_bytes: int) -> npt.NDArray[np.uint8]:
    whole = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    # One huge page more, so that an aligned part is in it wherever the system puts it.
    memory = mmap.mmap(-1, whole + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: slower, not wrong
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The array keeps the mapping alive; it is unmapped when the last view is gone.
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % HUGE_PAGE_BYTES
    return array[start : start + whole]


_threads = threading.local()


def thread_frames(place: int = 0) -> Scratch:
    """Return one of the calling thread's two buffers for frames as they lie on disk."""
    frames: tuple[Scratch, Scratch] | None = getattr(_threads, "frames", None)
    if frames is None:
        frames = _threads.frames = (Scratch(), Scratch())
    return frames[place]
