"""16-bit floats as 8-bit ones with a common scale for each block, and back.

As in the OCP microscaling format MXFP8: a *code* is one byte in E4M3 (sign, 4 bits of exponent,
3 of mantissa; largest 448), and a *block* of 32 numbers shares one power of two, with which its
largest number just fits. A power of two, because then every decoded number is a 16-bit float
exactly: decoding rounds nothing, gives the same bytes on every machine, and what was decoded is
encoded without any further loss.

A number is rounded to the nearest code, half to even: by at most 1/16 of itself, if it is not
smaller than 2^-13 of the largest number of its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.store.fp8kernels import BLOCK_ITEMS, LARGEST_CODES, SCALE_BIAS, kernels

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

#: Worked on at a time, so that what lies between is in a core's cache; whole blocks.
_PIECE_ITEMS = 64 << 10
_SIGN = 0x80


@dataclass(frozen=True)
class Number:
    """A kind of 16-bit floats, and the powers of two that its blocks are scaled with.

    With the least one the smallest code is the smallest number; the largest one serves the
    largest number.
    """

    name: str
    least_power: int
    largest_power: int

    def floats(self, raw: ByteArray) -> Floats:
        """Return the numbers that these bytes are, two each."""
        if self.name == "float16":
            return raw.view("<f2").astype(np.float32)
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)

    def items(self, floats: Floats) -> npt.NDArray[np.uint16]:
        """Return numbers as 16 bits each; they must be such numbers exactly."""
        if self.name == "float16":
            return floats.astype("<f2").view("<u2")
        return (floats.view(np.uint32) >> 16).astype("<u2")

    @cached_property
    def table(self) -> npt.NDArray[np.uint16]:
        """What each code is with each scale, at ``256 * scale + code``; 0 for what is none."""
        table = np.zeros((256, 256), np.uint16)
        for power in range(self.least_power, self.largest_power + 1):
            codes = 1 + LARGEST_CODES[power == self.largest_power]
            values = np.ldexp(_code_values()[:codes], power).astype(np.float32)
            table[power + SCALE_BIAS, :codes] = self.items(values)
            table[power + SCALE_BIAS, _SIGN : _SIGN + codes] = self.items(-values)
        return table.ravel()


BFLOAT16 = Number("bfloat16", -124, 120)
FLOAT16 = Number("float16", -15, 8)


def blocks_of(items: int) -> int:
    """Return how many blocks so many numbers have; the last one may be shorter."""
    return -(-items // BLOCK_ITEMS)


def encode(number: Number, raw: ByteArray, codes: ByteArray, scales: ByteArray) -> bool:
    """Encode numbers.

    :param raw: two bytes for each number
    :param codes: one byte for each number, to be filled
    :param scales: one byte for each block, to be filled
    :return: whether it was done; it is not if a number is infinite, or none
    """
    for start in range(0, len(codes), _PIECE_ITEMS):
        stop = min(start + _PIECE_ITEMS, len(codes))
        blocks = scales[start // BLOCK_ITEMS : blocks_of(stop)]
        floats = number.floats(raw[2 * start : 2 * stop])
        if not np.isfinite(floats).all():
            return False
        kernels().encode(
            floats, codes[start:stop], blocks, number.least_power, number.largest_power
        )
    return True


def decode(number: Number, codes: ByteArray, scales: ByteArray, raw: ByteArray) -> None:
    """Undo :func:`encode`, but for what it lost; *raw* has two bytes for each code."""
    for start in range(0, len(codes), _PIECE_ITEMS):
        stop = min(start + _PIECE_ITEMS, len(codes))
        blocks = scales[start // BLOCK_ITEMS : blocks_of(stop)]
        kernels().decode(codes[start:stop], blocks, number.table, raw[2 * start : 2 * stop])


@cache
def _code_values() -> npt.NDArray[np.float64]:
    """Return what the codes without a sign are."""
    codes = np.arange(_SIGN)
    exponents, mantissas = codes >> 3, (codes & 7) / 8
    return np.where(exponents == 0, np.ldexp(mantissas, -6), np.ldexp(1 + mantissas, exponents - 7))
