"""What all fuzz targets share."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sessiond.domain.errors import StoreError
from sessiond.testing.snapshots import a_key_ring

KEYS = a_key_ring()
#: How many readers were tried, and how many of them refused: seeds must not be refused by all.
COUNTS: Counter[str] = Counter()


@dataclass(frozen=True)
class Target:
    """One group of readers."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]  #: inputs that are valid


def by_mode(*modes: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Return a function that has the first byte choose who reads the rest."""

    def run(data: bytes) -> None:
        if data:
            modes[data[0] % len(modes)](data[1:])

    return run


@contextlib.contextmanager
def refused(kind: type[Exception] = StoreError) -> Iterator[None]:
    """Let a reader refuse with errors of this kind, and no others."""
    COUNTS["tried"] += 1
    try:
        yield
    except kind:
        COUNTS["refused"] += 1
