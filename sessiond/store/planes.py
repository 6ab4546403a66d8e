"""Splitting 16-bit items into byte planes, and joining them again.

With Numba, which vLLM brings, both run at memory speed; with NumPy alone at a tenth of it.
Both let other threads run. Which one is decided once, at the first use.
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

_ITEM = np.dtype("<u2")


class Kernels(NamedTuple):
    """One way of splitting and joining."""

    name: str
    split: Callable[[ByteArray, ByteArray, ByteArray], None]
    join: Callable[[ByteArray, ByteArray, ByteArray], None]


def split(raw: ByteArray, low: ByteArray, high: ByteArray) -> None:
    """Write the low and high bytes of *raw*'s little-endian items into two planes."""
    kernels().split(raw, low, high)


def join(low: ByteArray, high: ByteArray, raw: ByteArray) -> None:
    """Undo :func:`split`."""
    kernels().join(low, high, raw)


@functools.cache
def kernels() -> Kernels:
    """Return the fastest kernels that this installation has."""
    return fastest(compiled_kernels, numpy_kernels)


def numpy_kernels() -> Kernels:
    """Return the kernels that need nothing but NumPy."""
    return Kernels("numpy", _split_numpy, _join_numpy)


def compiled_kernels(numba: Any) -> Kernels:  # noqa: ANN401 - a module without types
    """Return kernels compiled by Numba; takes about a second."""
    types = numba.types
    read_items = types.Array(types.uint16, 1, "C", readonly=True)
    read_bytes = types.Array(types.uint8, 1, "C", readonly=True)
    items, plane = types.uint16[::1], types.uint8[::1]
    compiled = functools.partial(numba.njit, nogil=True)
    split_items = compiled(types.void(read_items, plane, plane))(_split_loop)
    join_items = compiled(types.void(read_bytes, read_bytes, items))(_join_loop)

    def split_planes(raw: ByteArray, low: ByteArray, high: ByteArray) -> None:
        split_items(_aligned_items(raw), low, high)

    def join_planes(low: ByteArray, high: ByteArray, raw: ByteArray) -> None:
        items = raw.view(_ITEM)
        if items.flags.aligned:
            join_items(low, high, items)
        else:
            _join_numpy(low, high, raw)

    return Kernels("numba", split_planes, join_planes)


def _aligned_items(raw: ByteArray) -> npt.NDArray[np.uint16]:
    view = raw.view(_ITEM)
    return view if view.flags.aligned else view.copy()


def _split_loop(items: Any, low: Any, high: Any) -> None:  # noqa: ANN401 - compiled by Numba
    for place in range(len(items)):
        item = items[place]
        low[place] = item & 0xFF
        high[place] = item >> 8


def _join_loop(low: Any, high: Any, items: Any) -> None:  # noqa: ANN401 - compiled by Numba
    for place in range(len(items)):
        items[place] = low[place] | (high[place] << 8)


def _split_numpy(raw: ByteArray, low: ByteArray, high: ByteArray) -> None:
    np.copyto(low, raw[0::2])
    np.copyto(high, raw[1::2])


def _join_numpy(low: ByteArray, high: ByteArray, raw: ByteArray) -> None:
    items = raw.view(_ITEM)
    np.left_shift(high, 8, out=items, dtype=_ITEM)
    np.bitwise_or(items, low, out=items)
