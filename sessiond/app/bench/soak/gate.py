"""Lets the agents of a soak work, holds them all for a moment, and ends their work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Every agent passes it before each step.

    :param agents: how many there are
    """

    def __init__(self, agents: int) -> None:
        self._changed = threading.Condition()
        self._working = agents
        self._open, self._over = True, False
        self._failure: Exception | None = None

    def passes(self) -> bool:
        """Return when the next step may be done; false: there is none any more."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._over)
            if self._over:
                return False
            self._working += 1
            return True

    def fail(self, error: Exception) -> None:
        """Tell that an agent has ended by an error of its own."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    @property
    def has_failed(self) -> bool:
        """Whether an agent has."""
        return self._failure is not None

    @contextmanager
    def rest(self, timeout_s: float) -> Iterator[None]:
        """Hold every agent as long as the context lasts; entered when all have come to rest.

        :raises RuntimeError: one of them works on and on, or has failed.
        """
        with self._changed:
            self._open = False
        try:
            self._wait_idle(timeout_s)
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()

    def end(self, timeout_s: float) -> None:
        """End the work; return when everybody has stopped.

        :raises RuntimeError: one of them works on and on, or has failed.
        """
        self.abandon()
        self._wait_idle(timeout_s)

    def abandon(self) -> None:
        """End the work, and wait for nobody."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _wait_idle(self, timeout_s: float) -> None:
        with self._changed:
            idle = self._changed.wait_for(lambda: self._failure or not self._working, timeout_s)
            if self._failure is not None:
                raise RuntimeError("An agent failed.") from self._failure
            if not idle:
                raise RuntimeError(f"{self._working} agents do not stop.")
