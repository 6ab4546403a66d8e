"""How long loads and prefills take here: curves that measured times were fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.estimates import Estimate, about
from sessiond.domain.fitting import Fit, Point, fit
from sessiond.domain.samples import LoadSample, PrefillSample, Tier

#: A sample that is so much older than another counts half as much.
HALF_LIFE_S: Final = 6 * 3600.0
#: Likewise one that so many newer ones follow: a machine that has changed is soon believed.
_HALF_LIFE_SAMPLES: Final = 24
#: What was assumed counts like so much of one fresh sample: much only when all have grown old.
_PRIOR_WEIGHT: Final = 0.05
#: How far a time may be from a curve of which nothing is known (of logarithms).
_UNKNOWN_SPREAD: Final = 0.5
#: What each doubling beyond the sizes that were seen adds to that.
_SPREAD_PER_DOUBLING: Final = 0.3


@dataclass(frozen=True)
class Trust:
    """How much a curve is worth."""

    samples: int = 0  #: that it was fitted to; 0: it is assumed
    weight: float = 0.0  #: of these in fresh samples: it falls with their age
    spread: float = _UNKNOWN_SPREAD  #: standard deviation of the logarithms of single times
    age_s: float = 0.0  #: of the newest sample, when the curve was fitted

    def deviation(self, doublings: float) -> float:
        """Return the deviation of an estimate, so many *doublings* beyond what was seen."""
        weight = max(self.weight, 0.5)
        known = (self.weight * self.spread**2 + _UNKNOWN_SPREAD**2) / (self.weight + 1.0)
        return math.sqrt(known * (1.0 + 1.0 / weight) + (_SPREAD_PER_DOUBLING * doublings) ** 2)


@dataclass(frozen=True)
class LoadCurve:
    """``fixed_s + stored_bytes / bytes_per_s``: from lookup to ready, decoding included.

    Beside other requests, each byte takes longer, and even the smallest load waits for them: the
    engine's steps are longer then.
    """

    tier: Tier
    fixed_s: float
    bytes_per_s: float
    slowdown: float = 0.0  #: of each other request, as a part of what the bytes take alone
    wait_s: float = 0.0  #: beside other requests, however many, whatever the size
    trust: Trust = Trust()
    least_bytes: int = 0  #: the sizes that were seen
    most_bytes: int = 0

    def lookup_s(self, others: float = 0.0) -> float:
        """Return the seconds that a load takes whatever its size."""
        return self.fixed_s + self.wait_s * min(1.0, others)

    def read_s(self, stored_bytes: float, others: float = 0.0) -> float:
        """Return the seconds that each byte adds, for so many of them."""
        return stored_bytes / self.bytes_per_s * (1.0 + self.slowdown * others)

    def estimate(self, stored_bytes: float, others: float = 0.0) -> Estimate:
        """Return how long a load takes beside so many other requests."""
        return self.around(self.lookup_s(others) + self.read_s(stored_bytes, others), stored_bytes)

    def around(self, seconds: float, stored_bytes: float) -> Estimate:
        """Return *seconds* with the doubt there is about a load of that size."""
        doublings = 0.0
        if self.trust.samples:
            # In time, not in bytes: of two small loads, both take what is fixed.
            low, seen, high = (
                self.fixed_s * self.bytes_per_s + size + 1.0
                for size in (self.least_bytes, stored_bytes, self.most_bytes)
            )
            doublings = max(0.0, math.log2(low / seen), math.log2(seen / high))
        return about(seconds, self.trust.deviation(doublings))

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form that people and tools read."""
        return {**asdict(self), "tier": self.tier.value}


@dataclass(frozen=True)
class PrefillCurve:
    """``fixed_s`` + the sum of ``per_token_s + per_token2_s x position`` over the tokens.

    Beside other requests, each token takes longer, and the shortest prefill waits for them.
    """

    fixed_s: float
    per_token_s: float
    per_token2_s: float  #: what a token costs more for each token before it
    slowdown: float = 0.0  #: of each other request, as a part of what the tokens take alone
    wait_s: float = 0.0  #: beside other requests, however many, however few the tokens
    trust: Trust = Trust()
    least_tokens: int = 0  #: the shortest that was seen
    last_token: int = 0  #: the farthest that was seen

    def seconds(self, from_token: int, to_token: int, others: float = 0.0) -> float:
        """Return the likely seconds; none for no tokens."""
        tokens = to_token - from_token
        if tokens <= 0:
            return 0.0
        growing = self.per_token2_s * _area(from_token, to_token)
        alone = self.per_token_s * tokens + growing
        return (
            self.fixed_s + self.wait_s * min(1.0, others) + alone * (1.0 + self.slowdown * others)
        )

    def estimate(self, from_token: int, to_token: int, others: float = 0.0) -> Estimate:
        """Return how long it takes to compute *from_token* up to *to_token*."""
        seconds = self.seconds(from_token, to_token, others)
        doublings = 0.0
        if self.trust.samples and to_token > from_token:
            # Of two short ones, both take what is fixed.
            shortest, this = (
                self.fixed_s + self.per_token_s * max(1, tokens)
                for tokens in (self.least_tokens, to_token - from_token)
            )
            shorter = math.log2(shortest / this) if this > 0.0 else 0.0
            doublings = max(0.0, shorter, math.log2(to_token / max(1, self.last_token)))
        return about(seconds, self.trust.deviation(doublings))

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form that people and tools read."""
        return asdict(self)


_MIB: Final = float(1 << 20)
#: What is assumed of a load before any was measured.
ASSUMED_LOADS: Final[Mapping[Tier, LoadCurve]] = {
    Tier.VRAM: LoadCurve(Tier.VRAM, 0.001, 100_000 * _MIB, 0.05, 0.0005),
    Tier.RAM: LoadCurve(Tier.RAM, 0.002, 4_000 * _MIB, 0.05, 0.0005),
    Tier.NVME: LoadCurve(Tier.NVME, 0.004, 1_000 * _MIB, 0.05, 0.001),
    Tier.ARCHIVE: LoadCurve(Tier.ARCHIVE, 0.100, 100 * _MIB, 0.05, 0.001),
}
#: What is assumed of a prefill before any was measured: 2,000 tokens a second.
ASSUMED_PREFILL: Final = PrefillCurve(0.010, 0.0005, 0.0005 / 30_000, 0.2, 0.002)


def fit_load(
    samples: Sequence[LoadSample],
    now_unix_s: float,
    assumed: LoadCurve,
    half_life_s: float = HALF_LIFE_S,
) -> LoadCurve:
    """Return the curve of a tier's loads; some milliseconds of work.

    :param samples: sound ones, of this tier
    :param assumed: the curve without samples, and its shape where they do not tell; all parts
        above 0
    """
    if not samples:
        return assumed
    weights = _weights([one.at_unix_s for one in samples], now_unix_s, half_life_s)
    points = [
        Point((float(one.stored_bytes),), one.seconds, weight, one.others)
        for one, weight in zip(samples, weights.relative, strict=True)
    ]
    fixed, wait = assumed.fixed_s * assumed.bytes_per_s, assumed.wait_s * assumed.bytes_per_s
    believed = Fit(1.0 / assumed.bytes_per_s, (), fixed, wait, assumed.slowdown, 0.0)
    found = _blended(fit(points, believed), believed, weights.fresh)
    return replace(
        assumed,
        fixed_s=found.scale * found.fixed,
        bytes_per_s=1.0 / found.scale,
        slowdown=found.slowdown,
        wait_s=found.scale * found.wait,
        trust=Trust(len(samples), weights.fresh, found.spread, weights.youngest_s),
        least_bytes=min(one.stored_bytes for one in samples),
        most_bytes=max(one.stored_bytes for one in samples),
    )


def fit_prefill(
    samples: Sequence[PrefillSample],
    now_unix_s: float,
    assumed: PrefillCurve = ASSUMED_PREFILL,
    half_life_s: float = HALF_LIFE_S,
) -> PrefillCurve:
    """Return the curve of prefills; some milliseconds of work. See :func:`fit_load`."""
    if not samples:
        return assumed
    weights = _weights([one.at_unix_s for one in samples], now_unix_s, half_life_s)
    points = [
        Point(_prefill_terms(one), one.seconds, weight, one.others)
        for one, weight in zip(samples, weights.relative, strict=True)
    ]
    per_token_s = assumed.per_token_s
    shape = (assumed.per_token2_s / per_token_s,)
    fixed, wait = assumed.fixed_s / per_token_s, assumed.wait_s / per_token_s
    believed = Fit(per_token_s, shape, fixed, wait, assumed.slowdown, 0.0)
    found = _blended(fit(points, believed), believed, weights.fresh)
    return replace(
        assumed,
        fixed_s=found.scale * found.fixed,
        per_token_s=found.scale,
        per_token2_s=found.scale * found.shape[0],
        slowdown=found.slowdown,
        wait_s=found.scale * found.wait,
        trust=Trust(len(samples), weights.fresh, found.spread, weights.youngest_s),
        least_tokens=min(one.to_token - one.from_token for one in samples),
        last_token=max(one.to_token for one in samples),
    )


@dataclass(frozen=True)
class _Weights:
    relative: list[float]  # the newest has 1, however old
    fresh: float  # all together, in samples of now
    youngest_s: float  # the newest one's age


def _weights(times_unix_s: Sequence[float], now_unix_s: float, half_life_s: float) -> _Weights:
    ages = [max(0.0, now_unix_s - at) / half_life_s for at in times_unix_s]
    ranks = {age: rank / _HALF_LIFE_SAMPLES for rank, age in enumerate(sorted(ages))}
    youngest = min(ages)
    relative = [_halved(age - youngest + ranks[age]) for age in ages]
    fresh = sum(relative) * _halved(youngest)
    return _Weights(relative, fresh, youngest * half_life_s)


def _halved(times: float) -> float:
    return math.exp2(-min(500.0, times))


def _blended(found: Fit, believed: Fit, fresh: float) -> Fit:
    """Return the fit with its scale a little nearer to the belief, the more the older it is."""
    part = _PRIOR_WEIGHT / (fresh + _PRIOR_WEIGHT)
    # The belief's time at what the points have in common would need a size; the rate stands for it.
    scale = found.scale ** (1.0 - part) * believed.scale**part
    return replace(found, scale=scale)


def _prefill_terms(one: PrefillSample) -> tuple[float, float]:
    return float(one.to_token - one.from_token), _area(one.from_token, one.to_token)


def _area(from_token: int, to_token: int) -> float:
    """Return the sum of the positions of the tokens, as an integral."""
    return (to_token**2 - from_token**2) / 2.0
