"""A mover that cannot be started yet, because the engine's fingerprint is still being taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from sessiond.connector.identity import Identity
from sessiond.connector.moverwatch import MoverLink
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.reasons import Cause

StartMover: TypeAlias = Callable[[], MoverLink]


@runtime_checkable
class Awaited(Protocol):
    """What a coordinator waits for while it has no mover."""

    @property
    def pending(self) -> Cause:
        """Why there is none yet."""

    def look(self) -> StartMover | Cause | None:
        """Return how to start one, why there will be none, or ``None``: not known yet."""

    def wait(self, timeout_s: float) -> None:
        """Return when that is known, or after *timeout_s*."""


class AwaitedMover:
    """The mover of an engine whose fingerprint is being taken.

    :param start_with: returns how to start one that serves this fingerprint
    :param on_identified: told the fingerprint as soon as it is known
    """

    def __init__(
        self,
        identity: Identity,
        start_with: Callable[[Fingerprint], StartMover],
        on_identified: Callable[[Fingerprint], None],
    ) -> None:
        self._identity = identity
        self._start_with = start_with
        self._on_identified = on_identified

    @property
    def pending(self) -> Cause:
        """Why there is none yet."""
        return self._identity.pending

    def look(self) -> StartMover | Cause | None:
        """Return how to start one, why there will be none, or ``None``: not known yet."""
        outcome = self._identity.outcome
        if not isinstance(outcome, Fingerprint):
            return outcome
        self._on_identified(outcome)
        return self._start_with(outcome)

    def wait(self, timeout_s: float) -> None:
        """Return when that is known, or after *timeout_s*."""
        self._identity.wait(timeout_s)
