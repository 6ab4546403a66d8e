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

import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from sessiond.domain.errors import StoreCorruptError
from sessiond.store import planes
from sessiond.store.buffers import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

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
#: Joined and checked at a time: what a core's cache holds.
_PIECE_BYTES = 512 << 10


class Decoded:
    """A chunk's raw bytes, joined only as they are asked for: to be checked, then copied.

    Valid until the coder that made it is used again.

    :param low: the plane of low bytes, or all bytes where *high* is ``None``
    :param piece: memory for one joined piece
    """

    def __init__(self, low: ByteArray, high: ByteArray | None, piece: Scratch) -> None:
        self._low, self._high = low, high
        self._piece = piece

    def __len__(self) -> int:
        return len(self._low) if self._high is None else 2 * len(self._low)

    def pieces(self) -> Iterator[ByteArray]:
        """Yield the bytes in order; a piece is valid until the next one is asked for."""
        if self._high is None:
            yield self._low
            return
        items = _PIECE_BYTES // 2
        for start in range(0, len(self._low), items):
            low, high = self._low[start : start + items], self._high[start : start + items]
            piece = self._piece.get(2 * len(low))
            planes.join(low, high, piece)
            yield piece

    def copy_to(self, out: ByteArray) -> None:
        """Write all bytes to *out*, which has the same length."""
        if self._high is None:
            np.copyto(out, self._low)
        else:
            planes.join(self._low, self._high, out)


class Coder:
    """Encodes and decodes chunks; one per thread (see :func:`thread_coder`)."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(**_HUFFMAN_ONLY)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._work, self._piece = Scratch(), Scratch()

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

    def decode(self, codec: int, payload: ByteArray, raw_bytes: int) -> Decoded:
        """Return the raw bytes; valid until this coder is used again.

        :raises StoreCorruptError: *payload* is none of *codec*'s, or not of *raw_bytes*.
        """
        if codec == Codec.RAW:
            if len(payload) != raw_bytes:
                raise StoreCorruptError("A raw chunk's length is wrong.")
            return Decoded(payload, None, self._piece)
        if codec == Codec.ZSTD:
            whole = self._work.get(raw_bytes)
            self._decompress(payload, whole)
            return Decoded(whole, None, self._piece)
        if codec == Codec.PLANAR_ZSTD:
            return self._decode_planar(payload, raw_bytes)
        raise StoreCorruptError(f"A chunk has the unknown codec {codec}.")

    def _encode_planar(self, raw: ByteArray, payload: ByteArray) -> int:
        items = len(raw) // 2
        if len(raw) < _PLANAR.size:
            return 0
        high = self._work.get(items)
        # The low plane usually stays as it is: split right to where it belongs then.
        planes.split(raw, payload[_PLANAR.size : _PLANAR.size + items], high)
        low_mode, low_bytes = self._put_plane(
            payload[_PLANAR.size : _PLANAR.size + items], payload, _PLANAR.size
        )
        offset = _PLANAR.size + low_bytes
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

    def _decode_planar(self, payload: ByteArray, raw_bytes: int) -> Decoded:
        if raw_bytes % 2 or len(payload) < _PLANAR.size:
            raise StoreCorruptError("A planar chunk is too short.")
        low_bytes, high_bytes, low_mode, high_mode, padding = _PLANAR.unpack_from(payload.data)
        middle = _PLANAR.size + low_bytes
        if middle + high_bytes != len(payload) or padding != _PADDING:
            raise StoreCorruptError("A planar chunk's planes do not fill it.")
        items = raw_bytes // 2
        work = self._work.get(raw_bytes)
        low = self._plane(low_mode, payload[_PLANAR.size : middle], work[:items])
        high = self._plane(high_mode, payload[middle:], work[items:])
        return Decoded(low, high, self._piece)

    def _plane(self, mode: int, data: ByteArray, out: ByteArray) -> ByteArray:
        if mode == _PLANE_RAW and len(data) == len(out):
            return data
        if mode != _PLANE_ZSTD:
            raise StoreCorruptError("A planar chunk's plane has a wrong form.")
        self._decompress(data, out)
        return out

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
    target = payload[offset : offset + len(data)]
    if target.ctypes.data != data.ctypes.data:  # it may lie there already
        np.copyto(target, data)
    return len(data)


def _sample_entropy_bits(plane: ByteArray) -> float:
    """Return the entropy of a spread sample, in bits a byte: what Huffman coding can reach."""
    step = max(1, len(plane) // _SAMPLE_BYTES)
    counts = np.bincount(plane[::step], minlength=256)
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum())
