"""Who brings KV back right now: work that can wait lets it go first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Restores:
    """Counts what waits for KV to be brought back, or brings it back, in this daemon."""

    def __init__(self) -> None:
        self._running = 0

    @property
    def are_running(self) -> bool:
        """Whether somebody waits for KV now."""
        return self._running > 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count one more as long as the context lasts."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
