"""Measures what a lossy codec lost, on the bytes that are really decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sessiond.domain.loss import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sessiond.domain.loss import ChunkLoss
    from sessiond.store.fp8 import Number

ByteArray: TypeAlias = npt.NDArray[np.uint8]

#: Looked at together, at most: what lies between stays small.
_MOST_BYTES = 32 << 10


class LossMeter:
    """Compares one chunk's decoded bytes with its raw ones.

    :param half_bytes: K and V alternate in runs of so many bytes, K first; 0: it is not known how
    """

    def __init__(self, number: Number, raw: ByteArray, half_bytes: int) -> None:
        self._number, self._raw, self._half_bytes = number, raw, half_bytes
        self._parts = [Loss()] * (2 if half_bytes else 1)

    @property
    def loss(self) -> ChunkLoss:
        """What was lost of K and of V, or of both, as far as it was watched."""
        return tuple(self._parts)

    def watch(self, pieces: Iterable[ByteArray]) -> Iterator[ByteArray]:
        """Yield the decoded pieces, each after it was measured."""
        at = 0
        for piece in pieces:
            for start, stop, part in self._runs(at, at + len(piece)):
                lost = self._lost(self._raw[start:stop], piece[start - at : stop - at])
                self._parts[part] += lost
            at += len(piece)
            yield piece

    def _runs(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield what is of one part: from where, to where, which one."""
        while start < end:
            half = start // self._half_bytes if self._half_bytes else 0
            stop = min(end, start + _MOST_BYTES)
            if self._half_bytes:
                stop = min(stop, (half + 1) * self._half_bytes)
            yield start, stop, half % 2
            start = stop

    def _lost(self, raw: ByteArray, decoded: ByteArray) -> Loss:
        before, after = self._number.floats(raw), self._number.floats(decoded)
        errors = before.astype(np.float64) - after
        sizes = np.abs(before, dtype=np.float64)
        return Loss(
            float(np.square(errors).sum()),
            float(np.square(sizes).sum()),
            float(np.abs(errors).max()),
            float(sizes.max()),
        )
