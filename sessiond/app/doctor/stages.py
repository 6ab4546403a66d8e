"""Measuring each stage of the restore path, as the mover does it, with KV that is made up."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from sessiond.app.bench.device import Device
from sessiond.app.bench.region import Region, Window
from sessiond.app.doctor.measured import CodecRates, Rates
from sessiond.connector.settings import default_read_threads
from sessiond.store.checksums import ChunkPosition, chunk_checksum
from sessiond.store.codecs import Codec, Decoded, payload_bound_bytes, thread_coder

Bytes = npt.NDArray[np.uint8]

CODECS: Final = (Codec.RAW, Codec.ZSTD, Codec.PLANAR_ZSTD)
_POSITION: Final = ChunkPosition(0, 0, 128, bytes(32))
_BYTES_DIGEST: Final = bytes(32)
_SYNCS: Final = 5
#: The file is no larger than what the device writes in about so long.
_WRITE_S: Final = 1.5


@dataclass(frozen=True)
class Sizes:
    """How much is moved."""

    file_bytes: int = 256 << 20  #: at most; a slow device gets less
    chunk_bytes: int = 2 << 20
    slots: int = 32  #: of the shared memory
    #: Each stage is repeated for about so long; its fastest pass counts, a busy moment does not.
    repeat_s: float = 0.3


def measure(folder: Path, sizes: Sizes, threads: int | None = None) -> Rates:
    """Measure all stages; some seconds.

    :param folder: on the store's file system; what is written there is removed
    :param threads: that decode; by default as many as the mover starts
    :raises OSError: the device cannot be written or read.
    """
    threads = threads or default_read_threads()
    with Region(sizes.slots, sizes.chunk_bytes) as region, _pool(threads, sizes.repeat_s) as pool:
        for slot in range(sizes.slots):
            region.slot(slot)[:] = made_up_kv(sizes.chunk_bytes, seed=slot)
        window, write_s, read_s = _device(folder, region, sizes)
        size_bytes = window.chunks * sizes.chunk_bytes
        work = _Work(region, pool)
        return Rates(
            size_bytes=size_bytes,
            write_bytes_s=size_bytes / write_s,
            sync_s=_sync_s(folder),
            read_bytes_s=size_bytes / read_s,
            codecs=tuple(work.codec(codec) for codec in CODECS),
            scatter_bytes_s=work.scatter(),
            copy_bytes_s=work.copy(),
            threads=threads,
        )


def made_up_kv(size_bytes: int, seed: int) -> Bytes:
    """Return numbers like those of KV in bfloat16: they compress like real ones, or a bit less."""
    values = np.random.default_rng(seed).standard_normal(size_bytes // 2, np.float32)
    return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)


def _device(folder: Path, region: Region, sizes: Sizes) -> tuple[Window, float, float]:
    """Write and read a file as large as the device's rate allows; the seconds of both."""
    device = Device(folder, region)
    small = _window(1)
    write_s = device.store(small)
    affordable = int(_WRITE_S / max(1e-6, write_s))
    room_bytes = min(sizes.file_bytes, shutil.disk_usage(folder).free // 4)
    window = _window(max(1, min(room_bytes // sizes.chunk_bytes, affordable)))
    write_s = device.store(window)
    _forget(device.path)
    read_s = device.load(window)
    device.discard(window)
    return window, write_s, read_s


def _window(chunks: int) -> Window:
    return Window(0, 0, (0,) * chunks)


def _forget(path: Path) -> None:
    """Have the kernel forget a file's pages, where they are in its cache."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _sync_s(folder: Path) -> float:
    path, taken_s = folder / "small", []
    for _ in range(_SYNCS):
        began_s = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            file.write(bytes(4096))
            os.fsync(file.fileno())
        taken_s.append(time.perf_counter() - began_s)
    path.unlink()
    return median(taken_s)


@contextmanager
def _pool(threads: int, repeat_s: float) -> Iterator[_Threads]:
    with ThreadPoolExecutor(threads, "sessiond-doctor") as pool:
        yield _Threads(pool, threads, repeat_s)


@dataclass(frozen=True)
class _Threads:
    """Threads that do the same with other chunks, at once."""

    pool: ThreadPoolExecutor
    count: int
    repeat_s: float

    def seconds(self, work: Callable[[int], None]) -> float:
        """Have each thread do its part, by its number, again and again; the fastest pass."""
        best_s, until_s = math.inf, time.perf_counter() + self.repeat_s
        self._pass(work)  # memory and kernels are warm afterwards
        while best_s == math.inf or time.perf_counter() < until_s:
            best_s = min(best_s, self._pass(work))
        return best_s

    def _pass(self, work: Callable[[int], None]) -> float:
        ready = threading.Barrier(self.count)

        def part(number: int) -> tuple[float, float]:
            ready.wait()
            began_s = time.perf_counter()
            work(number)
            return began_s, time.perf_counter()

        # By their own clocks: who waits for them may be woken late.
        parts = [self.pool.submit(part, number) for number in range(self.count)]
        began_s, ended_s = zip(*(one.result() for one in parts), strict=True)
        return max(1e-9, float(max(ended_s) - min(began_s)))


@dataclass(frozen=True)
class _Payload:
    codec: Codec  # that was used
    data: Bytes


class _Work:
    """The stages in memory, over all slots of a region."""

    def __init__(self, region: Region, threads: _Threads) -> None:
        self._region, self._threads = region, threads
        self._order = np.random.default_rng(0).permutation(region.slots)
        self._bytes = region.slots * region.chunk_bytes
        self._private = np.empty(region.chunk_bytes, np.uint8)

    def codec(self, codec: Codec) -> CodecRates:
        payloads = self._encoded(codec)

        def verify(number: int) -> None:
            for slot in self._slots(number):
                _prove(self._decoded(payloads[slot]).pieces())

        def deliver(number: int) -> None:
            for slot in self._slots(number):
                _prove(self._decoded(payloads[slot]).written_to(self._region.slot(slot)))

        verify_s, deliver_s = self._threads.seconds(verify), self._threads.seconds(deliver)
        return CodecRates(
            codec.name.lower().replace("_", "-"),
            sum(len(one.data) for one in payloads) / self._bytes,
            self._bytes / verify_s,
            self._bytes / deliver_s,
        )

    def _encoded(self, codec: Codec) -> list[_Payload]:
        """Return the payload of every slot: more than a processor's caches hold."""
        room = np.empty(payload_bound_bytes(self._region.chunk_bytes), np.uint8)
        payloads = []
        for slot in range(self._region.slots):
            used, stored = thread_coder().encode(codec, self._region.slot(slot), room)
            payloads.append(_Payload(used, room[:stored].copy()))
        return payloads

    def _decoded(self, payload: _Payload) -> Decoded:
        return thread_coder().decode(payload.codec, payload.data, self._region.chunk_bytes)

    def scatter(self) -> float:
        source = self._region.bytes.copy()

        def part(number: int) -> None:
            for slot in self._slots(number):
                start = slot * self._region.chunk_bytes
                np.copyto(self._region.slot(slot), source[start : start + len(self._private)])

        return self._bytes / self._threads.seconds(part)

    def copy(self) -> float:
        """As an engine on the CPU copies: one thread, chunk by chunk."""

        def part(number: int) -> None:
            for slot in self._order if number == 0 else ():
                np.copyto(self._private, self._region.slot(int(slot)))

        return self._bytes / self._threads.seconds(part)

    def _slots(self, number: int) -> list[int]:
        return [int(slot) for slot in self._order[number :: self._threads.count]]


def _prove(pieces: Iterable[Bytes]) -> None:
    chunk_checksum(_POSITION, _BYTES_DIGEST, pieces)
