"""The mover's view of the RAM tier."""

from __future__ import annotations

import mmap
import os
import threading

from sessiond.store.priority import lower_this_thread

#: ``MADV_POPULATE_WRITE`` of ``madvise(2)``, since Linux 5.14.
_POPULATE_WRITE = 23
#: Short enough for other threads to get their turn in between.
_STEP_BYTES = 16 << 20


def map_region(fd: int, size_bytes: int) -> mmap.mmap:
    """Map the region that *fd* names, and close *fd*."""
    region = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
    os.close(fd)
    return region


def touch_in_background(region: mmap.mmap) -> threading.Thread:
    """Let the system enter all of the region's pages into this process's page table.

    The memory is there (vLLM has filled it with zeros), but a process meets each page of it with
    a fault of its own: in the first load after a start, as long as the load itself took.
    """
    thread = threading.Thread(target=_touch, args=(region,), name="touch", daemon=True)
    thread.start()
    return thread


def _touch(region: mmap.mmap) -> None:
    lower_this_thread()
    for start in range(0, len(region), _STEP_BYTES):
        try:
            region.madvise(_POPULATE_WRITE, start, min(_STEP_BYTES, len(region) - start))
        except OSError:  # an older kernel: pages come when they are met
            return
