"""All that was measured of one kind of engine, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sessiond.domain.canonical import JsonValue
from sessiond.domain.curves import (
    ASSUMED_LOADS,
    ASSUMED_PREFILL,
    LoadCurve,
    PrefillCurve,
    fit_load,
    fit_prefill,
)
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.samples import (
    MOST_SAMPLES,
    LoadSample,
    PrefillSample,
    Tier,
    keep,
    read_load,
    read_prefill,
)

_VERSION: Final = 1
#: Of a file's list, no more is looked at: we never wrote that many.
_MOST_READ: Final = 16 * MOST_SAMPLES
#: What seems to be newer than this comes from a clock that was put back since.
_AHEAD_S: Final = 60.0


@dataclass(frozen=True)
class Curves:
    """What a plan reckons with."""

    loads: Mapping[Tier, LoadCurve]  #: of every tier
    prefill: PrefillCurve

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form that people and tools read."""
        return {
            "loads": [self.loads[tier].as_json() for tier in Tier if tier in self.loads],
            "prefill": self.prefill.as_json(),
        }


#: What is reckoned with before anything was measured.
ASSUMED: Final = Curves(ASSUMED_LOADS, ASSUMED_PREFILL)


@dataclass(frozen=True)
class Calibration:
    """The samples of one kind of engine, at most 64 of each curve, the oldest first."""

    loads: tuple[LoadSample, ...] = ()
    prefills: tuple[PrefillSample, ...] = ()
    #: Since when a tier's loads count, where earlier ones were left out.
    loads_since_unix_s: Mapping[Tier, float] = field(default_factory=dict)

    def with_load(self, sample: LoadSample) -> Calibration:
        """Return it with one more load; one that is not sound is left out."""
        if not sample.is_sound:
            return self
        return replace(self, loads=_loads([*self.loads, sample], self.loads_since_unix_s))

    def with_prefill(self, sample: PrefillSample) -> Calibration:
        """Return it with one more prefill; one that is not sound is left out."""
        if not sample.is_sound:
            return self
        return replace(self, prefills=keep([*self.prefills, sample]))

    def without_loads(self, tier: Tier, before_unix_s: float) -> Calibration:
        """Return it without a tier's loads before a moment: since then, they are of no account.

        Such as when a disk that was slow has recovered: many slow loads would outvote the few
        fast ones for long.
        """
        known = self.loads_since_unix_s
        since = {**known, tier: max(before_unix_s, known.get(tier, 0.0))}
        return replace(self, loads=_loads(self.loads, since), loads_since_unix_s=since)

    def merged_with(self, other: Calibration) -> Calibration:
        """Return what both know, each sample once; it does not matter which of them is asked.

        What one of them has left out, the other does not bring back.
        """
        since = dict(self.loads_since_unix_s)
        for tier, unix_s in other.loads_since_unix_s.items():
            since[tier] = max(unix_s, since.get(tier, 0.0))
        loads = _loads(sorted({*self.loads, *other.loads}), since)
        prefills = keep(sorted({*self.prefills, *other.prefills}))
        return Calibration(loads, prefills, since)

    def as_of(self, now_unix_s: float) -> Calibration:
        """Return it without what comes from the future, as after a clock was put back.

        Until that time has come, it would count as the newest, and keep out all that is measured.
        """
        latest_unix_s = now_unix_s + _AHEAD_S
        loads = tuple(one for one in self.loads if one.at_unix_s <= latest_unix_s)
        prefills = tuple(one for one in self.prefills if one.at_unix_s <= latest_unix_s)
        known = self.loads_since_unix_s
        since = {tier: unix_s for tier, unix_s in known.items() if unix_s <= latest_unix_s}
        lengths = len(loads), len(prefills), len(since)
        if lengths == (len(self.loads), len(self.prefills), len(known)):
            return self
        return Calibration(loads, prefills, since)

    def curves(self, now_unix_s: float, assumed: Curves = ASSUMED) -> Curves:
        """Return the curves of now: tens of milliseconds of work, so not for each plan.

        :param assumed: what counts where nothing was measured
        """
        loads = {
            tier: fit_load([one for one in self.loads if one.tier is tier], now_unix_s, curve)
            for tier, curve in assumed.loads.items()
        }
        return Curves(loads, fit_prefill(self.prefills, now_unix_s, assumed.prefill))

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files."""
        return {
            "version": _VERSION,
            "loads": [one.as_json() for one in self.loads],
            "prefills": [one.as_json() for one in self.prefills],
            "loads_since_unix_s": {
                tier.value: unix_s for tier, unix_s in self.loads_since_unix_s.items()
            },
        }


@dataclass(frozen=True)
class Reading:
    """What a file of samples held."""

    calibration: Calibration
    dropped: int  #: entries that are no sample


def read_calibration(value: JsonValue) -> Reading:
    """Read what :meth:`Calibration.as_json` wrote, without the entries that are no samples.

    :raises InvalidInputError: it is no calibration, or one of another version.
    """
    if not isinstance(value, Mapping) or value.get("version") != _VERSION:
        raise InvalidInputError(f"This is no calibration of version {_VERSION}.")
    load_values, prefill_values = (_list(value, name) for name in ("loads", "prefills"))
    loads, prefills = _sound(load_values, read_load), _sound(prefill_values, read_prefill)
    since = _since(value.get("loads_since_unix_s"))
    read = len(loads) + len(prefills)
    dropped = len(load_values) + len(prefill_values) - read
    return Reading(Calibration(_loads(loads, since), keep(prefills), since), dropped)


R = TypeVar("R")


def _list(value: Mapping[str, JsonValue], name: str) -> Sequence[JsonValue]:
    found = value.get(name)
    if not isinstance(found, list | tuple):
        raise InvalidInputError(f"A calibration's {name!r} is no list.")
    return found


def _since(value: JsonValue) -> dict[Tier, float]:
    """Return since when loads count; earlier versions did not write it."""
    found = value if isinstance(value, Mapping) else {}
    since: dict[Tier, float] = {}
    for tier in Tier:
        unix_s = found.get(tier.value)
        if isinstance(unix_s, int | float) and unix_s > 0.0:
            since[tier] = unix_s
    return since


def _loads(loads: Iterable[LoadSample], since: Mapping[Tier, float]) -> tuple[LoadSample, ...]:
    """Return the loads worth keeping, those of one tier after those of another."""
    known = [one for one in loads if one.at_unix_s >= since.get(one.tier, 0.0)]
    kept = (keep(one for one in known if one.tier is tier) for tier in Tier)
    return tuple(itertools.chain.from_iterable(kept))


def _sound(values: Sequence[JsonValue], read: Callable[[JsonValue], R | None]) -> list[R]:
    return [one for one in map(read, values[-_MOST_READ:]) if one is not None]
