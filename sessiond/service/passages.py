"""Turns for which this daemon has chosen an engine, which may not have begun them yet."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class OnTheWay:
    """Counts them by engine: until its scheduler has it, a turn is in no head."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._count: Counter[str] = Counter()

    @contextmanager
    def to(self, engine_id: str) -> Iterator[None]:
        """Count one more as long as the context lasts."""
        self._sent[engine_id] += 1
        self._count[engine_id] += 1
        try:
            yield
        finally:
            self._sent[engine_id] -= 1
            if not self._sent[engine_id]:
                del self._sent[engine_id]

    def count(self, engine_id: str) -> int:
        """Return how many were ever on their way to this engine."""
        return self._count[engine_id]

    def is_any(self, engine_id: str) -> bool:
        """Whether a turn is on its way to this engine."""
        return engine_id in self._sent
