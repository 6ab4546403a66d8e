"""How a chunk's bytes become a frame's payload and back.

====== ============ ==========================================================================
number name         payload
====== ============ ==========================================================================
0      raw          the bytes themselves
1      zstd         one zstd frame
2      planar-zstd  16-bit items as a plane of low and a plane of high bytes; each plane is one
                    zstd frame, or raw where that is not smaller. The header is 32 bytes.
3      fp8-bfloat16 *lossy*: bfloat16 as a plane of 8-bit floats and a plane of their blocks'
                    scales (:mod:`sessiond.store.fp8`), stored like the planes of 2
4      fp8-float16  *lossy*: the same of float16
====== ============ ==========================================================================

The high bytes of 16-bit floats (sign and exponent) compress well, the low ones hardly: split,
bf16 KV of real text shrinks to two thirds, nearly as far as its entropy allows, with zstd's
Huffman stage alone. Matches are not looked for: there are none, and looking is what costs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.domain.errors import StoreCorruptError
from sessiond.store import fp8, planes
from sessiond.store.buffers import Scratch
from sessiond.store.fp8kernels import BLOCK_ITEMS
from sessiond.store.twoplanes import PLANES_HEADER_BYTES, PlaneCoder, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ByteArray: TypeAlias = npt.NDArray[np.uint8]


class Codec(IntEnum):
    """The number that a chunk record carries."""

    RAW = 0
    ZSTD = 1
    PLANAR_ZSTD = 2
    FP8_BFLOAT16 = 3
    FP8_FLOAT16 = 4


#: Those that lose something, and which numbers they are for. No writer takes one by itself.
LOSSY: Mapping[int, fp8.Number] = {
    Codec.FP8_BFLOAT16: fp8.BFLOAT16,
    Codec.FP8_FLOAT16: fp8.FLOAT16,
}

#: Joined and checked at a time; whole blocks of FP8.
_PIECE_BYTES = 512 << 10


class Decoded(ABC):
    """A chunk's raw bytes, to be written and checked. Valid until its coder is used again."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many bytes these are."""

    @abstractmethod
    def pieces(self) -> Iterator[ByteArray]:
        """Yield the bytes in order; a piece is valid until the next one is asked for."""

    @abstractmethod
    def written_to(self, out: ByteArray) -> Iterator[ByteArray]:
        """Write all bytes to *out*, which has the same length.

        Yields each piece of it while a core's cache still has it.
        """

    def copy_to(self, out: ByteArray) -> None:
        """Write all bytes to *out*, which has the same length."""
        for _ in self.written_to(out):
            pass


class Whole(Decoded):
    """Raw bytes that lie in one place."""

    def __init__(self, raw: ByteArray) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    def pieces(self) -> Iterator[ByteArray]:
        """Yield the bytes."""
        yield self._raw

    def written_to(self, out: ByteArray) -> Iterator[ByteArray]:
        """Write the bytes to *out*, and yield them."""
        for start, stop in _pieces(len(self._raw)):
            np.copyto(out[start:stop], self._raw[start:stop])
            yield out[start:stop]


class Joined(Decoded):
    """Raw bytes that are joined of planes, only as they are asked for.

    :param size_bytes: of the raw bytes
    :param join: writes the raw bytes of items (first, after the last) of two bytes
    :param piece: memory for one joined piece
    """

    def __init__(
        self, size_bytes: int, join: Callable[[int, int, ByteArray], None], piece: Scratch
    ) -> None:
        self._size_bytes, self._join, self._piece = size_bytes, join, piece

    def __len__(self) -> int:
        return self._size_bytes

    def pieces(self) -> Iterator[ByteArray]:
        """Yield the bytes, as many as a core's cache holds at a time."""
        for start, stop in _pieces(self._size_bytes):
            piece = self._piece.get(stop - start)
            self._join(start // 2, stop // 2, piece)
            yield piece

    def written_to(self, out: ByteArray) -> Iterator[ByteArray]:
        """Write all bytes to *out*, and yield them."""
        for start, stop in _pieces(self._size_bytes):
            self._join(start // 2, stop // 2, out[start:stop])
            yield out[start:stop]


class Coder:
    """Encodes and decodes chunks; one per thread (see :func:`thread_coder`)."""

    def __init__(self) -> None:
        self._planes = PlaneCoder()
        self._work, self._piece = Scratch(), Scratch()

    def encode(self, codec: Codec, raw: ByteArray, payload: ByteArray) -> tuple[Codec, int]:
        """Write the payload for *raw* into *payload*, which is at least as long.

        :returns: the codec that was used, and the payload's length. ``RAW`` is used where
            *codec* does not apply or does not make it smaller; a lossless one instead of a lossy
            one where a number is infinite, or none.
        """
        if codec in LOSSY:
            stored = self._encode_fp8(LOSSY[codec], raw, payload)
            if 0 < stored < len(raw):
                return codec, stored
            codec = Codec.PLANAR_ZSTD
        stored = 0
        if codec is Codec.ZSTD:
            stored = put(self._planes.compress(raw), payload, 0)
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
            return Whole(payload)
        if codec == Codec.ZSTD:
            whole = self._work.get(raw_bytes)
            self._planes.decompress(payload, whole)
            return Whole(whole)
        if codec == Codec.PLANAR_ZSTD:
            return self._decode_planar(payload, raw_bytes)
        if codec in LOSSY:
            return self._decode_fp8(LOSSY[codec], payload, raw_bytes)
        raise StoreCorruptError(f"A chunk has the unknown codec {codec}.")

    def _encode_planar(self, raw: ByteArray, payload: ByteArray) -> int:
        items = len(raw) // 2
        if len(raw) < PLANES_HEADER_BYTES:
            return 0
        high = self._work.get(items)
        # The low plane usually stays as it is: split right to where it belongs then.
        low = payload[PLANES_HEADER_BYTES : PLANES_HEADER_BYTES + items]
        planes.split(raw, low, high)
        return self._planes.pack(low, high, payload)

    def _decode_planar(self, payload: ByteArray, raw_bytes: int) -> Decoded:
        items = _items(raw_bytes)
        work = self._work.get(raw_bytes)
        low, high = self._planes.unpack(payload, work[:items], work[items:])

        def join(start: int, stop: int, out: ByteArray) -> None:
            planes.join(low[start:stop], high[start:stop], out)

        return Joined(raw_bytes, join, self._piece)

    def _encode_fp8(self, number: fp8.Number, raw: ByteArray, payload: ByteArray) -> int:
        items = len(raw) // 2
        if len(raw) % 2 or len(raw) < 2 * PLANES_HEADER_BYTES:
            return 0
        codes = payload[PLANES_HEADER_BYTES : PLANES_HEADER_BYTES + items]
        scales = self._work.get(fp8.blocks_of(items))
        if not fp8.encode(number, raw, codes, scales):
            return 0
        return self._planes.pack(codes, scales, payload)

    def _decode_fp8(self, number: fp8.Number, payload: ByteArray, raw_bytes: int) -> Decoded:
        items = _items(raw_bytes)
        work = self._work.get(items + fp8.blocks_of(items))
        codes, scales = self._planes.unpack(payload, work[:items], work[items:])

        def join(start: int, stop: int, out: ByteArray) -> None:
            blocks = scales[start // BLOCK_ITEMS : fp8.blocks_of(stop)]
            fp8.decode(number, codes[start:stop], blocks, out)

        return Joined(raw_bytes, join, self._piece)


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
    return raw_bytes + PLANES_HEADER_BYTES + (raw_bytes >> 8) + 512


def _pieces(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where pieces begin and end."""
    for start in range(0, size_bytes, _PIECE_BYTES):
        yield start, min(start + _PIECE_BYTES, size_bytes)


def _items(raw_bytes: int) -> int:
    """Return how many items of two bytes these are.

    :raises StoreCorruptError: there is half an item
    """
    if raw_bytes % 2:
        raise StoreCorruptError("A planar chunk has half an item.")
    return raw_bytes // 2
