"""Competition for the disk: a process that reads and writes past the page cache until it ends.

``python -m sessiond.app.bench.resume.noise FILE``
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sessiond.app.bench.resume.usage import Work, work
from sessiond.store.buffers import Scratch
from sessiond.store.fileio import FileOps
from sessiond.store.reading import use_direct_io

_BLOCK_BYTES = 4 << 20
_FILE_BLOCKS = 64


class Noise:
    """The running process."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", __name__, str(path)], stdin=subprocess.DEVNULL
        )

    def work(self) -> Work:
        """Return what it has done."""
        return work([self._process.pid])

    def is_running(self) -> bool:
        """Whether it still does it."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it.

        :raises RuntimeError: it had ended by itself, so that there was no competition.
        """
        status = self._process.poll()
        self._process.kill()
        self._process.wait()
        if status is not None:
            raise RuntimeError(f"What competes for the disk ended with {status}.")


@contextmanager
def beside(path: Path) -> Iterator[Noise]:
    """Have the disk read and written meanwhile; *path* is removed afterwards."""
    noise = Noise(path)
    try:
        yield noise
    finally:
        noise.close()
        path.unlink(missing_ok=True)


def main(path: Path) -> None:
    """Read a block and write another one, until whoever started this ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    block = Scratch().get(_BLOCK_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    use_direct_io(FileOps(), fd)
    for number in range(_FILE_BLOCKS):
        os.pwrite(fd, block.data, number * _BLOCK_BYTES)
    while os.getppid() == parent:
        number = (number + 1) % _FILE_BLOCKS
        os.preadv(fd, [block.data], number * _BLOCK_BYTES)
        os.pwrite(fd, block.data, (number + _FILE_BLOCKS // 2) % _FILE_BLOCKS * _BLOCK_BYTES)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
