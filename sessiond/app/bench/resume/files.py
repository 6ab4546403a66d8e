"""A contestant's files: how many bytes they have, and that the page cache has none of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_S = 0.01
#: Files that are being written are not counted.
_UNFINISHED = ".tmp"


def stored_bytes(folder: Path) -> int:
    """Return the bytes of all finished files below *folder*."""
    return sum(size for path, size in _sizes(folder) if _UNFINISHED not in path)


def wait_for(folder: Path, wanted_bytes: int, timeout_s: float) -> float:
    """Wait until so many bytes are there; return the seconds.

    :raises RuntimeError: they did not come.
    """
    began_s = time.perf_counter()
    while (found := stored_bytes(folder)) < wanted_bytes:
        if time.perf_counter() - began_s > timeout_s:
            raise RuntimeError(f"{folder} has {found} of {wanted_bytes} bytes after {timeout_s} s.")
        time.sleep(_POLL_S)
    return time.perf_counter() - began_s


def forget(folder: Path) -> None:
    """Have the kernel drop what it caches of the files below *folder*."""
    for path, _ in _sizes(folder):
        with contextlib.suppress(OSError):  # it went meanwhile
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(fd)  # what was not written yet is not dropped
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - thousands of them
            with contextlib.suppress(OSError):
                yield path, os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 - likewise
