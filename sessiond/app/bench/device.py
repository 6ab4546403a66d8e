"""The reference: the device itself, sequentially, past the page cache, in huge pages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sessiond.app.bench.region import Region, Window
from sessiond.store.buffers import Scratch
from sessiond.store.fileio import FileOps, is_unsupported
from sessiond.store.reading import use_direct_io

#: Beyond this size neither depth nor threads make anything faster.
BLOCK_BYTES = 4 << 20


class Device:
    """Writes and reads as many bytes as a window has.

    :ivar path: of the file
    """

    name = "device"

    def __init__(self, folder: Path, region: Region) -> None:
        self.path = folder / "device"
        self._region = region
        self._block = Scratch().get(BLOCK_BYTES)

    def store(self, window: Window) -> float:
        """Write a file, with one fdatasync at the end; returns the seconds."""
        size_bytes = window.chunks * self._region.chunk_bytes
        # Real bytes: a device might be quicker with zeros.
        sample = self._region.slot(window.slots[0])[:BLOCK_BYTES]
        self._block[: len(sample)] = sample
        began_s = time.perf_counter()
        with self._open(os.O_RDWR | os.O_CREAT | os.O_TRUNC) as fd:
            _reserve(fd, size_bytes)
            for offset in range(0, size_bytes, BLOCK_BYTES):
                length = min(BLOCK_BYTES, size_bytes - offset)
                os.pwrite(fd, self._block[:length].data, offset)
            os.fdatasync(fd)
        return time.perf_counter() - began_s

    def load(self, window: Window) -> float:
        """Read the file into a block of huge pages; returns the seconds."""
        del window
        began_s = time.perf_counter()
        with self._open(os.O_RDONLY) as fd:
            offset = 0
            while got := os.preadv(fd, [self._block.data], offset):
                offset += got
        return time.perf_counter() - began_s

    def discard(self, window: Window) -> None:
        """Remove the file."""
        del window
        self.path.unlink()

    @contextmanager
    def _open(self, flags: int) -> Iterator[int]:
        fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        try:
            use_direct_io(FileOps(), fd)
            yield fd
        finally:
            os.close(fd)


def _reserve(fd: int, size_bytes: int) -> None:
    try:
        FileOps().allocate(fd, 0, size_bytes)
    except OSError as error:
        if not is_unsupported(error):
            raise
