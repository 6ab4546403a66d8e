"""Payloads of two planes of bytes, each one zstd frame, or raw where that is not smaller.

A header of 32 bytes goes before them (FORMAT.md, "Codecs").
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from sessiond.domain.errors import StoreCorruptError

ByteArray: TypeAlias = npt.NDArray[np.uint8]

_HUFFMAN_ONLY: dict[str, Any] = {
    "strategy": zstandard.STRATEGY_FAST,
    "min_match": 7,
    "hash_log": 6,
    "chain_log": 6,
    "search_log": 1,
    "window_log": 17,
    "target_length": 0,
}

_HEADER = struct.Struct("<QQBB14s")
#: Of every payload of two planes; the first plane begins behind it.
PLANES_HEADER_BYTES = _HEADER.size
_PADDING = bytes(14)
_RAW, _ZSTD = 0, 1
#: Compression of a plane is tried if a sample's entropy promises to save more than this.
_WORTH_BITS = 7.6
_SAMPLE_BYTES = 16 << 10


class PlaneCoder:
    """Compresses and packs planes; one per thread."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(**_HUFFMAN_ONLY)
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)

    def pack(self, first: ByteArray, second: ByteArray, payload: ByteArray) -> int:
        """Write a payload, and return its length; 0 if it is none, because a plane is empty.

        :param first: may lie in *payload* already, right behind where the header goes
        """
        first_form, first_bytes = self._put_plane(first, payload, PLANES_HEADER_BYTES)
        offset = PLANES_HEADER_BYTES + first_bytes
        second_form, second_bytes = self._put_plane(second, payload, offset)
        header = _HEADER.pack(first_bytes, second_bytes, first_form, second_form, _PADDING)
        payload[:PLANES_HEADER_BYTES] = np.frombuffer(header, np.uint8)
        return offset + second_bytes if first_bytes and second_bytes else 0

    def unpack(
        self, payload: ByteArray, first: ByteArray, second: ByteArray
    ) -> tuple[ByteArray, ByteArray]:
        """Return both planes: where they lie in the payload, or decompressed.

        :param first: memory for the first plane, exactly as long
        :param second: the same for the second
        :raises StoreCorruptError: the payload is none, or its planes have other lengths
        """
        if len(payload) < PLANES_HEADER_BYTES:
            raise StoreCorruptError("A planar chunk is too short.")
        first_bytes, second_bytes, first_form, second_form, padding = _HEADER.unpack_from(
            payload.data
        )
        middle = PLANES_HEADER_BYTES + first_bytes
        if middle + second_bytes != len(payload) or padding != _PADDING:
            raise StoreCorruptError("A planar chunk's planes do not fill it.")
        return (
            self._plane(first_form, payload[PLANES_HEADER_BYTES:middle], first),
            self._plane(second_form, payload[middle:], second),
        )

    def compress(self, data: ByteArray) -> ByteArray:
        """Return *data* as one zstd frame."""
        return np.frombuffer(self._compressor.compress(data.data), np.uint8)

    def decompress(self, data: ByteArray, out: ByteArray) -> None:
        """Fill *out* exactly; never allocates what a damaged frame claims.

        :raises StoreCorruptError: *data* is no zstd frame of this length
        """
        try:
            with self._decompressor.stream_reader(data.data) as reader:
                got = reader.readinto(out)
        except (zstandard.ZstdError, MemoryError) as error:
            raise StoreCorruptError("A chunk cannot be decompressed.") from error
        if got != len(out):
            raise StoreCorruptError("A chunk decompresses to a wrong length.")

    def _put_plane(self, plane: ByteArray, payload: ByteArray, offset: int) -> tuple[int, int]:
        if _sample_entropy_bits(plane) < _WORTH_BITS:
            frame = self.compress(plane)
            if len(frame) < len(plane):
                return _ZSTD, put(frame, payload, offset)
        return _RAW, put(plane, payload, offset)

    def _plane(self, form: int, data: ByteArray, out: ByteArray) -> ByteArray:
        if form == _RAW and len(data) == len(out):
            return data
        if form != _ZSTD:
            raise StoreCorruptError("A planar chunk's plane has a wrong form.")
        self.decompress(data, out)
        return out


def put(data: ByteArray, payload: ByteArray, offset: int) -> int:
    """Copy *data* into *payload*, unless it lies there already; return its length."""
    target = payload[offset : offset + len(data)]
    if target.ctypes.data != data.ctypes.data:
        np.copyto(target, data)
    return len(data)


def _sample_entropy_bits(plane: ByteArray) -> float:
    """Return the entropy of a spread sample, in bits a byte: what Huffman coding can reach."""
    step = max(1, len(plane) // _SAMPLE_BYTES)
    counts = np.bincount(plane[::step], minlength=256)
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log2(shares)).sum())
