"""A RAM tier like vLLM's: shared memory whose slots are filled in arbitrary order."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from typing import Self

import blake3
import numpy as np

from sessiond.app.bench.kv import CHUNK_TOKENS, Bytes, KvSource


class WrongBytesError(RuntimeError):
    """Restored bytes are not those that were stored: no figure of this run counts."""


@dataclass(frozen=True)
class Window:
    """Chunks that are suspended and restored together, as one session."""

    number: int
    first_chunk: int  #: of the source
    slots: tuple[int, ...]  #: of each chunk

    @property
    def chunks(self) -> int:
        """How many chunks."""
        return len(self.slots)

    @property
    def tokens(self) -> int:
        """How many tokens."""
        return self.chunks * CHUNK_TOKENS

    @property
    def session(self) -> str:
        """The session's id."""
        return f"window-{self.number}"


def windows(chunks: int, slots: int) -> list[Window]:
    """Split *chunks* into sessions that fit *slots*; their slots are scattered."""
    found = []
    for number, first in enumerate(range(0, chunks, slots)):
        order = np.random.default_rng(number).permutation(slots)[: min(slots, chunks - first)]
        found.append(Window(number, first, tuple(int(slot) for slot in order)))
    return found


class Region:
    """Slots of one chunk each. Use it as a context; its memory goes with it."""

    def __init__(self, slots: int, chunk_bytes: int) -> None:
        self.slots, self.chunk_bytes = slots, chunk_bytes
        self.fd = os.memfd_create("sessiond-bench-region")
        os.ftruncate(self.fd, slots * chunk_bytes)
        self._map = mmap.mmap(self.fd, slots * chunk_bytes)
        self.bytes: Bytes = np.frombuffer(self._map, np.uint8)
        self._digests: list[bytes] = []
        for slot in np.random.default_rng(0).permutation(slots):
            self.slot(int(slot))[:: mmap.PAGESIZE] = 0  # its pages are taken now, in this order

    def slot(self, number: int) -> Bytes:
        """Return the memory of one slot."""
        start = number * self.chunk_bytes
        return self.bytes[start : start + self.chunk_bytes]

    def fill(self, window: Window, source: KvSource) -> None:
        """Put a window's chunks into its slots, and remember what they are."""
        self._digests = []
        for index, slot in enumerate(window.slots, window.first_chunk):
            source.read(index, self.slot(slot))
            self._digests.append(blake3.blake3(self.slot(slot).data).digest())

    def clear(self) -> None:
        """Forget the bytes, so that nothing old can be taken for restored."""
        self.bytes[:] = 0

    def check(self, window: Window, who: str) -> None:
        """Require what :meth:`fill` has put into the window's slots.

        :raises WrongBytesError: there is something else.
        """
        for slot, digest in zip(window.slots, self._digests, strict=True):
            if blake3.blake3(self.slot(slot).data).digest() != digest:
                raise WrongBytesError(f"{who} restored wrong bytes.")

    def close(self) -> None:
        """Give the memory back."""
        self.bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # views of it go a little later
            self._map.close()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
