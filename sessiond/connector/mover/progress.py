"""How often the mover tells of progress."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Each word wakes the engine, on the cores that the mover works on; far below any deadline.
EVERY_S = 0.05


def now_and_then(
    tell: Callable[[], None],
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Return a call that passes on to *tell* the first time after each *every_s*."""
    told_s = clock()

    def call() -> None:
        nonlocal told_s
        if clock() >= told_s + every_s:
            told_s = clock()
            tell()

    return call
