"""The inner loops of FP8: with Numba, which vLLM brings, or with NumPy alone, which is slower.

Both give the same bytes, and both let other threads run. Which one is decided once, at the
first use.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.store.compiling import fastest

if TYPE_CHECKING:
    from collections.abc import Callable

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Table: TypeAlias = npt.NDArray[np.uint16]

#: Numbers with a common scale.
BLOCK_ITEMS = 32
#: A block's power of two is stored with this added, in one byte.
SCALE_BIAS = 127
#: 448; with the largest scale 240, beyond which there is no finite 16-bit float.
LARGEST_CODES = (0x7E, 0x77)
_LEAST_NORMAL = np.float32(2.0**-6)
#: Below it, codes are multiples of 1 / this.
_STEPS = np.float32(2.0**9)


class Kernels(NamedTuple):
    """One way of doing it.

    ``encode`` takes finite numbers, fills codes and scales, and is told the least and the largest
    power of two. ``decode`` takes codes, scales and a number's table, and fills raw bytes.
    """

    name: str
    encode: Callable[[Floats, ByteArray, ByteArray, int, int], None]
    decode: Callable[[ByteArray, ByteArray, Table, ByteArray], None]


@functools.cache
def kernels() -> Kernels:
    """Return the fastest kernels that this installation has."""
    return fastest(compiled_kernels, numpy_kernels)


def numpy_kernels() -> Kernels:
    """Return the kernels that need nothing but NumPy."""
    return Kernels("numpy", _encode_numpy, _decode_numpy)


def compiled_kernels(numba: Any) -> Kernels:  # noqa: ANN401 - a module without types
    """Return kernels compiled by Numba; takes a second or two."""
    types = numba.types
    read = functools.partial(types.Array, ndim=1, layout="C", readonly=True)
    filled, power = types.uint8[::1], types.int64
    compiled = functools.partial(numba.njit, nogil=True)
    encode_items = compiled(types.void(read(types.int32), filled, filled, power, power))(
        _encode_loop
    )
    decode_items = compiled(
        types.void(read(types.uint8), read(types.uint8), read(types.uint16), types.uint16[::1])
    )(_decode_loop)

    def encode(
        floats: Floats, codes: ByteArray, scales: ByteArray, least: int, largest: int
    ) -> None:
        encode_items(floats.view(np.int32), codes, scales, least, largest)

    def decode(codes: ByteArray, scales: ByteArray, table: Table, raw: ByteArray) -> None:
        items = raw.view("<u2")
        if items.flags.aligned:
            decode_items(codes, scales, table, items)
        else:
            _decode_numpy(codes, scales, table, raw)

    return Kernels("numba", encode, decode)


def _encode_loop(bits: Any, codes: Any, scales: Any, least: Any, largest: Any) -> None:  # noqa: ANN401 - compiled by Numba
    """Encode floats, given as their bits: rounding is done in integers."""
    for block in range(len(scales)):
        first = block * BLOCK_ITEMS
        last = min(first + BLOCK_ITEMS, len(bits))
        most = 0
        for place in range(first, last):
            most = max(most, bits[place] & 0x7FFFFFFF)
        # 448 is 1.75 · 2^8: a larger mantissa needs the next power.
        power = (most >> 23) - 135 + (1 if (most & 0x7FFFFF) > 0x600000 else 0)
        power = min(max(power, least), largest)
        limit = LARGEST_CODES[1] if power == largest else LARGEST_CODES[0]
        scales[block] = power + SCALE_BIAS
        for place in range(first, last):
            size = bits[place] & 0x7FFFFFFF
            exponent, mantissa = size >> 23, size & 0x7FFFFF
            if exponent:
                mantissa |= 0x800000
            elif mantissa:
                exponent = 1
                while mantissa < 0x800000:
                    mantissa <<= 1
                    exponent -= 1
            else:
                exponent = power  # of zero: far below what is rounded to zero
            exponent -= power + 121  # 0: the least normal code's
            shift = min(20 + max(0, -exponent), 25)
            half = (1 << (shift - 1)) - 1 + ((mantissa >> shift) & 1)
            code = (max(0, exponent) << 3) + ((mantissa + half) >> shift)
            codes[place] = min(code, limit) | ((bits[place] >> 24) & 0x80)


def _decode_loop(codes: Any, scales: Any, table: Any, items: Any) -> None:  # noqa: ANN401 - compiled by Numba
    for block in range(len(scales)):
        row = scales[block] << 8
        first = block * BLOCK_ITEMS
        for place in range(first, min(first + BLOCK_ITEMS, len(codes))):
            items[place] = table[row + codes[place]]


def _encode_numpy(
    floats: Floats, codes: ByteArray, scales: ByteArray, least: int, largest: int
) -> None:
    sizes = np.zeros(len(scales) * BLOCK_ITEMS, np.float32)
    np.abs(floats, out=sizes[: len(floats)])
    blocks = sizes.reshape(-1, BLOCK_ITEMS)
    mantissas, exponents = np.frexp(blocks.max(axis=1))  # 0.5 ≤ mantissa < 1
    # 448 is 0.875 · 2^9: a larger mantissa needs the next power.
    powers = np.clip(exponents - np.where(mantissas <= 0.875, 9, 8), least, largest)
    powers[mantissas == 0] = least
    blocks *= np.ldexp(np.float32(1), -powers).astype(np.float32)[:, np.newaxis]
    nearest = _nearest(sizes)
    limits = np.where(powers == largest, LARGEST_CODES[1], LARGEST_CODES[0])
    np.minimum(nearest, np.repeat(limits, BLOCK_ITEMS), out=nearest)
    codes[:] = nearest[: len(floats)]
    codes |= np.signbit(floats).view(np.uint8) << 7
    scales[:] = powers + SCALE_BIAS


def _nearest(sizes: Floats) -> npt.NDArray[np.int64]:
    """Return the nearest codes of numbers from 0 to 448, half to even."""
    bits = sizes.view(np.int32)
    # What is behind the third bit of the mantissa is rounded off; a carry goes where it should.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    return np.where(sizes < _LEAST_NORMAL, np.rint(sizes * _STEPS), normal).astype(np.int64)


def _decode_numpy(codes: ByteArray, scales: ByteArray, table: Table, raw: ByteArray) -> None:
    rows = np.repeat(scales.astype(np.intp) << 8, BLOCK_ITEMS)[: len(codes)]
    rows |= codes
    raw[:] = table.take(rows).view(np.uint8)
