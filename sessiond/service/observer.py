"""Who is told of what happened: the metrics, in a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sessiond.domain.reasons import Cause
    from sessiond.domain.retention import RemovalCause
    from sessiond.domain.session import OperationKind
    from sessiond.service.sweep import SweepReport


class Observer(Protocol):
    """Hears of the end of every operation, and of what retention does."""

    def ended(self, kind: OperationKind, outcome: str, reason: str, seconds: float) -> None:
        """Take note; *outcome* and *reason* come from closed lists, *reason* may be empty."""

    def explained(self, kind: str, causes: Iterable[Cause]) -> None:
        """Take note of why a suspend, resume or ``turn`` did not do everything."""

    def removed(self, cause: RemovalCause, size_bytes: int, *, unread: bool) -> None:
        """Take note of one session's snapshots that are gone; *unread*: never loaded."""

    def written(self, size_bytes: int) -> None:
        """Take note of the bytes written for a snapshot, without those that it shares."""

    def settled(self, size_bytes: int, *, read: bool) -> None:
        """Take note of what became of such bytes: *read*, or else gone without it."""

    def measured(self, by_kind: Mapping[str, int], free_bytes: int) -> None:
        """Take note of what the store takes of its disk, in bytes."""

    def verified(self, stored_bytes: int, damaged: int) -> None:
        """Take note of what a verification has read, and how much of it was damaged."""

    def swept(self, report: SweepReport) -> None:
        """Take note of what a sweep did."""

    def planned(self, choice: str, reason: str) -> None:
        """Take note of a plan that is carried out; *reason*: why not all is loaded, or empty."""

    def estimated(
        self, load_error: float | None, recompute_error: float | None, break_even: float | None
    ) -> None:
        """Take note of how far a plan's times were from the measured ones, as parts of these.

        :param break_even: the rate, in bytes per second, from which on its load would have paid
        """

    def restored(self, tier: str, bytes_per_s: float) -> None:
        """Take note of the effective rate of one load, from lookup to ready."""

    def loads_paused(self, engines: int) -> None:
        """Take note of how many engines load nothing from disk, as that has not paid lately."""

    def paused(self, *, on: bool) -> None:
        """Take note of whether the sweeps are paused."""
