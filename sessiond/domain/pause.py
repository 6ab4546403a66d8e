"""A pause of everything that suspends sessions by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pause:
    """Who paused the sweeps, when, why, and until when."""

    by: str  #: the tenant of the operator
    since_unix_s: float
    reason: str = ""
    until_unix_s: float | None = None  #: ``None``: until somebody takes it back

    def is_over(self, now_unix_s: float) -> bool:
        """Whether it has ended by itself."""
        return self.until_unix_s is not None and now_unix_s >= self.until_unix_s
