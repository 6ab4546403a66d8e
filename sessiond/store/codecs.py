"""How a chunk's bytes become a frame's payload and back. All lossless.

====== ============ ==========================================================================
number name         payload
====== ============ ==========================================================================
0      raw          the bytes themselves
1      zstd         one zstd frame
2      planar-zstd  16-bit items as a plane of low and a plane of high bytes; each plane is one
                    zstd frame, or raw where that is not smaller. The header is 32 bytes.
====== ============ ==========================================================================

The high bytes of 16-bit floats (sign and exponent) compress well, the low ones hardly: split,
bf16 KV of real text shrinks to two thirds, nearly as far as its entropy allows, with zstd's
Huffman stage alone. Matches are not looked for: there are none, and looking is what costs.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from sessiond.domain.errors import StoreCorruptError
from sessiond.store import planes
from sessiond.store.buffers import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable

ByteArray: TypeAlias = npt.NDArray[np.uint8]


class Codec(IntEnum):
    """The number that a chunk record carries."""

    RAW = 0
    ZSTD = 1
    PLANAR_ZSTD = 2


_HUFFMAN_ONLY: dict[str, Any] = {
    "strategy": zstandard.STRATEGY_FAST,
    "min_match": 7,
    "hash_log": 6,
    "chain_log": 6,
    "search_log": 1,
    "window_log": 17,
    "target_length": 0,
}

_PLANAR = struct.Struct("<QQBB14s")
_PADDING = bytes(14)
_PLANE_RAW, _PLANE_ZSTD = 0, 1
#: Compression of a plane is tried if a sample's entropy promises to save more than this.
_WORTH_BITS = 7.6
_SAMPLE_BYTES = 16 << 10


class Coder:
    """Encodes and decodes chunks; one per thread (see :func:`thread_coder`)."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(**_HUFFMAN_ONLY)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._low, self._high, self._joined = Scratch(), Scratch(), Scratch()

    def encode(self, codec: Codec, raw: ByteArray, payload: ByteArray) -> tuple[Codec, int]:
        """Write the payload for *raw* into *payload*, which is at least as long.

        :returns: the codec that was used, and the payload's length. ``RAW`` is used where
            *codec* does not apply or does not make it smaller.
        """
        stored = 0
        if codec is Codec.ZSTD:
            stored = _put(self._compress(raw), payload, 0)
        elif codec is Codec.PLANAR_ZSTD and len(raw) % 2 == 0:
            stored = self._encode_planar(raw, payload)
        if 0 < stored < len(raw):
            return codec, stored
        np.copyto(payload[: len(raw)], raw)
        return Codec.RAW, len(raw)

    def decode(self, codec: int, payload: ByteArray, raw_bytes: int) -> ByteArray:
        """Return the raw bytes; valid until this coder is used again.

        :raises StoreCorruptError: *payload* is none of *codec*'s, or not of *raw_bytes*.
        """
        if codec == Codec.RAW:
            if len(payload) != raw_bytes:
                raise StoreCorruptError("A raw chunk's length is wrong.")
            return payload
        if codec == Codec.ZSTD:
            joined = self._joined.get(raw_bytes)
            self._decompress(payload, joined)
            return joined
        if codec == Codec.PLANAR_ZSTD:
            return self._decode_planar(payload, raw_bytes)
        raise StoreCorruptError(f"A chunk has the unknown codec {codec}.")

    def _encode_planar(self, raw: ByteArray, payload: ByteArray) -> int:
        items = len(raw) // 2
        if len(raw) < _PLANAR.size:
            return 0
        low, high = self._low.get(items), self._high.get(items)
        planes.split(raw, low, high)
        offset = _PLANAR.size
        low_mode, low_bytes = self._put_plane(low, payload, offset)
        offset += low_bytes
        high_mode, high_bytes = self._put_plane(high, payload, offset)
        header = _PLANAR.pack(low_bytes, high_bytes, low_mode, high_mode, _PADDING)
        payload[: _PLANAR.size] = np.frombuffer(header, np.uint8)
        return offset + high_bytes if low_bytes and high_bytes else 0

    def _put_plane(self, plane: ByteArray, payload: ByteArray, offset: int) -> tuple[int, int]:
        if _sample_entropy_bits(plane) < _WORTH_BITS:
            frame = self._compress(plane)
            if len(frame) < len(plane):
                return _PLANE_ZSTD, _put(frame, payload, offset)
        return _PLANE_RAW, _put(plane, payload, offset)

    def _decode_planar(self, payload: ByteArray, raw_bytes: int) -> ByteArray:
        if raw_bytes % 2 or len(payload) < _PLANAR.size:
            raise StoreCorruptError("A planar chunk is too short.")
        low_bytes, high_bytes, low_mode, high_mode, padding = _PLANAR.unpack_from(payload.data)
        middle = _PLANAR.size + low_bytes
        if middle + high_bytes != len(payload) or padding != _PADDING:
            raise StoreCorruptError("A planar chunk's planes do not fill it.")
        items = raw_bytes // 2
        low = self._plane(low_mode, payload[_PLANAR.size : middle], self._low, items)
        high = self._plane(high_mode, payload[middle:], self._high, items)
        joined = self._joined.get(raw_bytes)
        planes.join(low, high, joined)
        return joined

    def _plane(self, mode: int, data: ByteArray, scratch: Scratch, items: int) -> ByteArray:
        if mode == _PLANE_RAW and len(data) == items:
            return data
        if mode != _PLANE_ZSTD:
            raise StoreCorruptError("A planar chunk's plane has a wrong form.")
        plane = scratch.get(items)
        self._decompress(data, plane)
        return plane

    def _compress(self, data: ByteArray) -> ByteArray:
        return np.frombuffer(self._compressor.compress(data.data), np.uint8)

    def _decompress(self, data: ByteArray, out: ByteArray) -> None:
        """Fill *out* exactly; never allocates what a damaged frame claims."""
        try:
            with self._decompressor.stream_reader(data.data) as reader:
                got = reader.readinto(out)
        except (zstandard.ZstdError, MemoryError) as error:
            raise StoreCorruptError("A chunk cannot be decompressed.") from error
        if got != len(out):
            raise StoreCorruptError("A chunk decompresses to a wrong length.")


_threads = threading.local()


def thread_coder() -> Coder:
    """Return the calling thread's coder; its memory goes when the thread ends."""
    coder = getattr(_threads, "coder", None)
    if coder is None:
        coder = _threads.coder = Coder()
    return coder


def payload_bound_bytes(raw_bytes: int) -> int:
    """Return how long a buffer for :meth:`Coder.encode` must be.

    A plane is stored raw rather than longer, so only the planar header and a zstd frame of
    incompressible bytes exceed the raw length, and both are given up then.
    """
    return raw_bytes + _PLANAR.size + (raw_bytes >> 8) + 512


def _put(data: ByteArray, payload: ByteArray, offset: int) -> int:
    np.copyto(payload[offset : offset + len(data)], data)
    return len(data)


def _sample_entropy_bits(plane: ByteArray) -> float:
    """Return the entropy of a spread sample, in bits a byte: what Huffman coding can reach."""
    step = max(1, len(plane) // _SAMPLE_BYTES)
    counts = np.bincount(plane[::step], minlength=256)
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum())


@dataclass(frozen=True)
class CodecTrial:
    """What one codec costs and saves on this machine now."""

    codec: Codec
    stored_share: float  #: stored bytes / raw bytes
    encode_bytes_s: float  #: raw bytes a second, one thread
    decode_bytes_s: float  #: raw bytes a second, one thread, until the bytes lie in a buffer

    def restore_s_per_byte(self, read_bytes_s: float, threads: int) -> float:
        """Return the time that restoring a raw byte takes, reading and decoding overlapped."""
        return max(self.stored_share / read_bytes_s, 1 / (self.decode_bytes_s * threads))


#: Used until a caller has measured its device.
ASSUMED_READ_BYTES_S = 3e9
#: A restore may take this much longer for the sake of a smaller file.
_PATIENCE = 1.1
#: A codec that saves less than this share is not worth its work.
_MAX_STORED_SHARE = 0.95


def try_codecs(sample: memoryview, *, item_bytes: int = 2) -> list[CodecTrial]:
    """Measure every codec that applies to items of *item_bytes* on one chunk's raw bytes."""
    candidates = [Codec.RAW, Codec.PLANAR_ZSTD if item_bytes == 2 else Codec.ZSTD]
    raw = np.frombuffer(sample, np.uint8)
    return [_trial(codec, raw) for codec in candidates]


def choose_codec(
    sample: memoryview,
    *,
    item_bytes: int = 2,
    read_bytes_s: float = ASSUMED_READ_BYTES_S,
    threads: int = 2,
) -> Codec:
    """Return the codec that pays for chunks like *sample* on this machine now.

    The smallest one that does not make a restore noticeably slower; ``RAW`` if none pays.

    :param read_bytes_s: the device's read rate, as measured.
    :param threads: how many threads decode at once.
    """
    trials = try_codecs(sample, item_bytes=item_bytes)
    limit = _PATIENCE * trials[0].restore_s_per_byte(read_bytes_s, threads)
    paying = [
        trial
        for trial in trials[1:]
        if trial.stored_share <= _MAX_STORED_SHARE
        and trial.restore_s_per_byte(read_bytes_s, threads) <= limit
    ]
    return min(paying, key=lambda trial: trial.stored_share, default=trials[0]).codec


def _trial(codec: Codec, raw: ByteArray) -> CodecTrial:
    coder = thread_coder()
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    out = np.empty_like(raw)
    used, stored = coder.encode(codec, raw, payload)  # warms memory and kernels
    encode_s = _seconds(lambda: coder.encode(codec, raw, payload))
    decode_s = _seconds(lambda: np.copyto(out, coder.decode(used, payload[:stored], len(raw))))
    return CodecTrial(codec, stored / len(raw), len(raw) / encode_s, len(raw) / decode_s)


def _seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Return the best of a few runs: others' work on the machine only ever adds time."""
    best = math.inf
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best
