"""Fences: what is asked right before a session's files are changed."""

from __future__ import annotations

from collections.abc import Callable

#: Raises if a change must not be made any more. It is asked under the lock of the session that
#: is changed, right before that: who has made it raise, and then takes the lock, finds the session
#: as it stays.
Fence = Callable[[], None]


def no_fence() -> None:
    """Let every change be made."""
