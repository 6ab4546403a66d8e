"""The device's rates, as the mover's own reads and writes show them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sessiond.store.fileio import FileOps

#: Smaller transfers measure latency, not the rate.
_LEAST_BYTES = 1 << 20
#: What was seen counts half as much after so many seconds of the device's work.
_HALF_LIFE_S = 1.0
#: Less than this is no measurement.
_LEAST_SEEN_BYTES = 16 << 20


@dataclass
class Rate:
    """Bytes by the time during which at least one transfer was under way."""

    _bytes: float = 0.0
    _busy_s: float = 0.0
    _under_way: int = 0
    _since_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def measure(self, transfer: Callable[[], int]) -> int:
        """Do a transfer, which returns how many bytes it moved."""
        with self._lock:
            if self._under_way == 0:
                self._since_s = time.perf_counter()
            self._under_way += 1
        moved = 0
        try:
            moved = transfer()
            return moved
        finally:
            self._note(moved)

    def _note(self, size_bytes: int) -> None:
        with self._lock:
            now_s = time.perf_counter()
            self._under_way -= 1
            self._bytes += size_bytes
            self._busy_s += now_s - self._since_s
            self._since_s = now_s
            if self._busy_s > 2 * _HALF_LIFE_S:
                self._bytes /= 2
                self._busy_s /= 2

    def bytes_s(self, assumed: float) -> float:
        """Return the rate; *assumed* until enough was moved."""
        with self._lock:
            if self._bytes < _LEAST_SEEN_BYTES or self._busy_s <= 0:
                return assumed
            return self._bytes / self._busy_s


class MeteredOps(FileOps):
    """Real file operations; large transfers are measured on the way."""

    def __init__(self) -> None:
        self._reads, self._writes = Rate(), Rate()

    def read_bytes_s(self, assumed: float) -> float:
        """Return the rate of reading; *assumed* until enough was read."""
        return self._reads.bytes_s(assumed)

    def write_bytes_s(self, assumed: float) -> float:
        """Return the rate of writing, without syncs; *assumed* until enough was written."""
        return self._writes.bytes_s(assumed)

    def pread(self, fd: int, buffer: memoryview, offset_bytes: int) -> int:
        """Read, and measure."""
        if len(buffer) < _LEAST_BYTES:
            return super().pread(fd, buffer, offset_bytes)
        return self._reads.measure(partial(super().pread, fd, buffer, offset_bytes))

    def pwrite(self, fd: int, data: bytes | memoryview, offset_bytes: int) -> int:
        """Write, and measure."""
        if len(data) < _LEAST_BYTES:
            return super().pwrite(fd, data, offset_bytes)
        return self._writes.measure(partial(super().pwrite, fd, data, offset_bytes))
