"""What the agents did, were promised and were told. Several threads write into it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from sessiond.app.bench.soak.comparison import Said


@dataclass
class Promise:
    """A session that must not be lost, or must be gone."""

    session_id: str
    created_unix_s: float
    generation: int = 0  #: the newest snapshot that was acknowledged
    deleting: bool = False  #: a delete was asked for; it may have been done, answered or not
    deleted: bool = False  #: and acknowledged


class Ledger:
    """Counts and records. Each session belongs to one agent, which alone changes its promise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()  #: of turns
        self.resumed: Counter[str] = Counter()  #: outcomes of resumes
        self.refused: Counter[str] = Counter()  #: by what was asked, and the code
        self.answers: list[Said] = []
        self.promises: dict[str, Promise] = {}
        self.lost: list[str] = []

    def count(self, what: str) -> None:
        """Count something that was done."""
        with self._lock:
            self.counts[what] += 1

    def refuse(self, what: str, code: str) -> None:
        """Count a call that was refused, or broke."""
        with self._lock:
            self.refused[f"{what}: {code}"] += 1

    def answered(self, said: Said, outcome: str | None) -> None:
        """Record an answer, also a part of one; *outcome* ``None``: its end did not come."""
        with self._lock:
            self.answers.append(said)
            if outcome is not None:
                self.counts["turns"] += 1
                self.outcomes[outcome] += 1

    def resumed_as(self, outcome: str) -> None:
        """Count a resume."""
        with self._lock:
            self.counts["resumes"] += 1
            self.resumed[outcome] += 1

    def promise(self, promise: Promise) -> None:
        """Record a session that was created."""
        with self._lock:
            self.promises[promise.session_id] = promise

    def lose(self, session_id: str, why: str) -> None:
        """Record a session that is lost."""
        with self._lock:
            self.lost.append(f"{session_id}: {why}")

    def kept(self) -> list[Promise]:
        """Return the sessions that must be there."""
        with self._lock:
            return [one for one in self.promises.values() if not one.deleting]
