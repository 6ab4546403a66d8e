"""A circuit breaker of the loads from one tier into one engine: a pure state machine.

Closed, all loads pass. It opens when loads have lately taken longer than computing would have,
which is the same as a rate under the break-even one. Open, none passes for a while, then one may
try (half-open): if that pays, the breaker closes, else it stays open for twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from sessiond.domain.canonical import JsonValue


class BreakerState(StrEnum):
    """Whether loads pass."""

    CLOSED = "closed"  #: all do
    OPEN = "open"  #: none does
    HALF_OPEN = "half_open"  #: one is under way, and decides


class Passage(StrEnum):
    """What becomes of a load that is asked for."""

    ALLOWED = "allowed"
    TRIAL = "trial"  #: it may be the one that is tried
    PAUSED = "paused"


@dataclass(frozen=True)
class BreakerLimits:
    """When a breaker opens and how long it stays so."""

    loads: int = 5  #: so many of the newest are looked at, and half of them have to pay
    first_pause_s: float = 30.0
    longest_pause_s: float = 3600.0
    trial_s: float = 300.0  #: a trial that was not heard of for so long is given up


@dataclass(frozen=True)
class Breaker:
    """The state of one breaker."""

    limits: BreakerLimits = BreakerLimits()
    state: BreakerState = BreakerState.CLOSED
    since_unix_s: float = 0.0  #: when it came into this state
    pause_s: float = 0.0  #: how long the newest pause is; 0 while closed
    ratios: tuple[float, ...] = ()  #: computing to loading, of the newest loads; under 1: no gain

    def passage(self, now_unix_s: float) -> Passage:
        """Return what becomes of a load that is asked for now."""
        if self.state is BreakerState.CLOSED:
            return Passage.ALLOWED
        is_open = self.state is BreakerState.OPEN
        wait_s = self.pause_s if is_open else self.limits.trial_s
        # A clock that was set back must not make a pause longer than it is.
        waited_s = abs(now_unix_s - self.since_unix_s)
        return Passage.TRIAL if waited_s >= wait_s else Passage.PAUSED

    def with_trial(self, now_unix_s: float) -> Breaker:
        """Return it when a load begins that passed as a trial: no other passes until its end."""
        if self.passage(now_unix_s) is not Passage.TRIAL:
            return self
        return replace(self, state=BreakerState.HALF_OPEN, since_unix_s=now_unix_s)

    def with_load(
        self, load_s: float, recompute_s: float, began_unix_s: float, now_unix_s: float
    ) -> Breaker:
        """Return it when a load has ended.

        One that began before the state did is left out: it says nothing of now.

        :param load_s: what it took, without the queue; more than 0
        :param recompute_s: what computing would have taken, without the queue
        """
        if self.state is BreakerState.OPEN or began_unix_s < self.since_unix_s:
            return self
        ratio = recompute_s / load_s
        if self.state is BreakerState.HALF_OPEN:
            return self._closed(now_unix_s) if ratio >= 1.0 else self._opened(now_unix_s)
        ratios = (*self.ratios, ratio)[-self.limits.loads :]
        # The median: a hiccup, or one lucky load, changes nothing.
        if len(ratios) == self.limits.loads and median(ratios) < 1.0:
            return self._opened(now_unix_s)
        return replace(self, ratios=ratios)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form that people and tools read."""
        return {
            "state": self.state.value,
            "since_unix_s": self.since_unix_s,
            "pause_s": self.pause_s,
            "ratios": list(self.ratios),
        }

    def _opened(self, now_unix_s: float) -> Breaker:
        doubled_s = max(self.limits.first_pause_s, 2.0 * self.pause_s)
        pause_s = min(self.limits.longest_pause_s, doubled_s)
        return Breaker(self.limits, BreakerState.OPEN, now_unix_s, pause_s)

    def _closed(self, now_unix_s: float) -> Breaker:
        return Breaker(self.limits, BreakerState.CLOSED, now_unix_s)
