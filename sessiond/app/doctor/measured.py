"""What the doctor measures and finds, and what follows from the rates: pure values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """A stage of the restore path."""

    READ = "read"
    DECODE = "decode"
    DELIVER = "deliver"
    COPY = "copy"


STAGE_WORDS = {
    Stage.READ: "reading the device",
    Stage.DECODE: "verifying and decoding",
    Stage.DELIVER: "copying into the RAM tier",
    Stage.COPY: "copying out of the RAM tier",
}


@dataclass(frozen=True)
class CodecRates:
    """What the mover's threads reach together with one codec, in raw KV."""

    codec: str
    stored_share: float  #: stored bytes / raw bytes
    decode_bytes_s: float  #: until a chunk is verified
    deliver_bytes_s: float  #: until it lies in its slot, the decoding included


@dataclass(frozen=True)
class Rates:
    """What the stages reach, each alone."""

    size_bytes: int  #: of the file
    write_bytes_s: float  #: with one sync at the end
    sync_s: float  #: of a small file: each commit waits for some
    read_bytes_s: float  #: into huge pages, past the page cache where that is possible
    scatter_bytes_s: float  #: from memory into scattered slots of shared memory, all threads
    copy_bytes_s: float  #: from such slots into private memory, one thread
    threads: int  #: that verify and decode
    codecs: tuple[CodecRates, ...]


@dataclass(frozen=True)
class Way:
    """A restore with one codec, its stages overlapped as the mover does it."""

    codec: str
    stored_share: float
    bytes_s: float  #: of raw KV
    bottleneck: Stage
    stage_bytes_s: dict[Stage, float]  #: of raw KV, each stage as if the others took no time


def way_of(rates: Rates, codec: CodecRates) -> Way:
    """Return how fast restores are with one codec: as fast as the slowest of what overlaps.

    Reads and the engine's copies overlap with the threads that decode, one of which decodes a
    chunk into its place and verifies it there.
    """
    decode_s, deliver_s = 1 / codec.decode_bytes_s, 1 / codec.deliver_bytes_s
    alone_s = {
        Stage.READ: codec.stored_share / rates.read_bytes_s,
        Stage.DECODE: decode_s,
        # The rest of the same threads' time; two measurements may contradict each other.
        Stage.DELIVER: max(0.0, deliver_s - decode_s) or 1 / rates.scatter_bytes_s,
        Stage.COPY: 1 / rates.copy_bytes_s,
    }
    threads_s = alone_s[Stage.DECODE] + alone_s[Stage.DELIVER]
    slowest_s = max(alone_s[Stage.READ], threads_s, alone_s[Stage.COPY])
    if threads_s == slowest_s:
        bottleneck = max(Stage.DECODE, Stage.DELIVER, key=lambda stage: alone_s[stage])
    else:
        bottleneck = max(Stage.READ, Stage.COPY, key=lambda stage: alone_s[stage])
    each = {stage: 1 / seconds for stage, seconds in alone_s.items()}
    return Way(codec.codec, codec.stored_share, 1 / slowest_s, bottleneck, each)


def ways_of(rates: Rates) -> tuple[Way, ...]:
    """Return how fast restores are with each codec, the fastest first."""
    ways = (way_of(rates, codec) for codec in rates.codecs)
    return tuple(sorted(ways, key=lambda way: -way.bytes_s))


@dataclass(frozen=True)
class Facts:
    """What was found of the machine and of the store root."""

    store_root: str
    exists: bool  #: whether the root is there
    is_ours: bool  #: whether it is this user's, and no other can enter it
    file_system: str
    direct_io: bool
    free_bytes: int
    total_bytes: int
    floor_bytes: int  #: that suspends leave free
    cores: int  #: of the machine
    usable_cores: float  #: that this process may use: its affinity, and its control group's quota
    load_average: float
    huge_pages: str  #: always, madvise or never; empty: unknown
    kernels: str  #: of the planar codec: numba or numpy
    shm_free_bytes: int  #: of /dev/shm, where the RAM tier lies
    memory_free_bytes: int
    clock_offset_s: float  #: how far the file system's clock is ahead of ours
    now_unix_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the form that tools read."""
        return asdict(self)
