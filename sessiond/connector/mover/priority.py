"""Reads before writes."""

from __future__ import annotations

import threading

#: However busy reads are, writes go on: a write that starves would be taken for a hanging one.
_LONGEST_PAUSE_S = 0.2


class ReadGate:
    """Counts waiting and running reads; writers wait while there are any."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._reads = 0

    def enter(self) -> None:
        """A read was asked for."""
        with self._condition:
            self._reads += 1

    def leave(self) -> None:
        """A read has ended."""
        with self._condition:
            self._reads -= 1
            self._condition.notify_all()

    def wait_until_idle(self, longest_s: float = _LONGEST_PAUSE_S) -> None:
        """Return once no read waits or runs, or after *longest_s*."""
        with self._condition:
            self._condition.wait_for(lambda: self._reads == 0, longest_s)
