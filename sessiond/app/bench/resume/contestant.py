"""A way to come back: it prepares sessions, is restarted, and serves them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sessiond.app.bench.resume.ask import Answer
from sessiond.app.bench.resume.sessions import Context


@dataclass(frozen=True)
class Prepared:
    """What a session's first turns were, before it went away."""

    first: Answer  #: computed
    warm: Answer  #: the same again, from VRAM
    ram: Answer | None  #: the same again, from RAM, where that can be had
    stored_bytes: int
    store_s: float  #: until the KV was on disk, after the first answer


class Contestant(Protocol):
    """One way to come back."""

    name: str
    folder: Path  #: all its files; removed with the site

    @property
    def keeps(self) -> bool:
        """Whether anything outlives the engine; only then sessions are prepared."""

    def restart(self) -> None:
        """Start its processes; those that run are killed first, and all memory with them."""

    def prepare(self, context: Context) -> Prepared:
        """Take the session's first turns, and have its KV stored."""

    def arrive(self, context: Context) -> Answer:
        """Take the session's turn again, however its KV is to be had."""

    def processes(self) -> list[int]:
        """Return the ids of all its processes."""

    def close(self) -> None:
        """End them."""
