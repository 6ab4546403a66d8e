"""Who is told of what happened: the metrics, in a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sessiond.domain.session import OperationKind


class Observer(Protocol):
    """Hears of the end of every operation, once."""

    def ended(self, kind: OperationKind, outcome: str, reason: str, seconds: float) -> None:
        """Take note; *outcome* and *reason* come from closed lists, *reason* may be empty."""


class Deaf:
    """An observer that ignores everything."""

    def ended(self, kind: OperationKind, outcome: str, reason: str, seconds: float) -> None:
        """Do nothing."""
