"""Resumes that do not fit into their engine's RAM tier together: first come, first served.

An engine can hold requests as well, but looks at each of them in every step, and their
deadlines run meanwhile. So it is sent as many as fit and at most one more, which begins the
moment there is room; the others wait here, where nothing is lost by waiting.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import EngineId
    from sessiond.service.watch import Key

#: Each takes two connections to the engine, which suspends and turns need, too.
MOST_AT_ONCE = 16


@dataclass(eq=False)  # two of one session are two: the first one's lease may be lost
class _Place:
    key: Key
    chunks: int  # of the RAM tier
    stored_bytes: int = 0  # that it reads
    go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Line:
    """The resumes of one engine."""

    running: list[_Place] = field(default_factory=list)
    waiting: list[_Place] = field(default_factory=list)  # who came first is first

    def advance(self, capacity_chunks: int) -> None:
        """Let those go whose turn it is."""
        while self.waiting and self._has_room(capacity_chunks):
            first = self.waiting.pop(0)
            self.running.append(first)
            first.go.set()

    def leave(self, place: _Place) -> None:
        """Give a place up, wherever it is."""
        places = self.waiting if place in self.waiting else self.running
        places.remove(place)

    def _has_room(self, capacity_chunks: int) -> bool:
        few = len(self.running) < MOST_AT_ONCE
        taken = sum(place.chunks for place in self.running)
        return few and (not self.running or taken < capacity_chunks)


class ResumeQueue:
    """The resumes of one daemon, in a line for each engine; used from one event loop."""

    def __init__(self) -> None:
        self._lines: dict[EngineId, _Line] = {}

    @asynccontextmanager
    async def place(
        self, key: Key, engine: EngineInfo, chunks: int, stored_bytes: int = 0
    ) -> AsyncIterator[float]:
        """Wait until it is the session's turn, and keep the place until the end.

        :param chunks: how many the resume may read
        :param stored_bytes: how much that is on disk
        :return: the seconds that it waited
        """
        began_s = monotonic()
        line = self._lines.setdefault(engine.engine_id, _Line())
        place = _Place(key, min(chunks, engine.ram_tier_chunks), stored_bytes)
        line.waiting.append(place)
        line.advance(engine.ram_tier_chunks)
        try:
            await place.go.wait()
            yield monotonic() - began_s
        finally:
            line.leave(place)
            line.advance(engine.ram_tier_chunks)
            if not line.running and not line.waiting:
                self._lines.pop(engine.engine_id, None)

    def position(self, key: Key) -> int | None:
        """Return how many waiting resumes go before the session's; ``None``: it does not wait."""
        for line in self._lines.values():
            keys = [place.key for place in line.waiting]
            if key in keys:
                return keys.index(key)
        return None

    def ahead(self, key: Key, engine_id: EngineId) -> list[int]:
        """Return what is read before a resume of the session is: the stored bytes of each load.

        Those that run read over the same path, so they go before as well.
        """
        line = self._lines.get(engine_id)
        if line is None:
            return []
        ahead = list(line.running)
        for place in line.waiting:
            if place.key == key:
                break
            ahead.append(place)
        return [place.stored_bytes for place in ahead if place.key != key]

    def length(self, engine_id: EngineId) -> int:
        """Return how many resumes run in an engine, or wait for it."""
        line = self._lines.get(engine_id)
        return len(line.running) + len(line.waiting) if line else 0

    @property
    def waiting(self) -> int:
        """How many resumes wait, for all engines."""
        return sum(len(line.waiting) for line in self._lines.values())
