"""Times that are not known yet: a likely one, and between which two most will be."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

from sessiond.domain.canonical import JsonValue

#: Standard deviations from the likely time to each end: nine of ten times are in between.
_REACH: Final = 1.645


@dataclass(frozen=True)
class Estimate:
    """Seconds that something will take; nine times of ten between ``low_s`` and ``high_s``."""

    likely_s: float
    low_s: float
    high_s: float

    def __add__(self, other: Estimate) -> Estimate:
        """Return the time of both, one after the other, as if both were slow on the same days."""
        return Estimate(
            self.likely_s + other.likely_s, self.low_s + other.low_s, self.high_s + other.high_s
        )

    def beside(self, other: Estimate) -> Estimate:
        """Return the time until both have ended that begin together."""
        return Estimate(
            max(self.likely_s, other.likely_s),
            max(self.low_s, other.low_s),
            max(self.high_s, other.high_s),
        )

    def sureness(self, within_s: float) -> float:
        """Return how surely it ends within so many seconds: more is surer, 0 is even odds.

        In standard deviations, infinite where the time is known exactly.
        """
        if within_s <= 0.0:
            return -math.inf
        distance = math.log(within_s / self.likely_s) if self.likely_s > 0.0 else math.inf
        deviation = math.log(self.high_s / self.likely_s) / _REACH if self.likely_s > 0.0 else 0.0
        if deviation > 0.0:
            return distance / deviation
        return math.inf if distance >= 0.0 else -math.inf

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in plans."""
        return asdict(self)


#: What takes no time.
NOTHING: Final = Estimate(0.0, 0.0, 0.0)


def exactly(seconds: float) -> Estimate:
    """Return a time that is known."""
    return Estimate(seconds, seconds, seconds)


def about(seconds: float, deviation: float) -> Estimate:
    """Return a time whose logarithm has the standard deviation *deviation*."""
    factor = math.exp(_REACH * deviation)
    return Estimate(seconds, seconds / factor, seconds * factor)


#: From here on, a time counts as sure: nineteen of twenty are shorter.
SURE: Final = _REACH
