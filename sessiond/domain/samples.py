"""What was measured of loads and of prefills, and which of it is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from sessiond.domain.canonical import JsonValue

#: So many samples are kept for one curve.
MOST_SAMPLES: Final = 64
#: No such count of bytes or tokens, and no such time in seconds, was ever measured.
_TOO_MANY: Final = 1 << 62
_LEAST_S: Final = 1e-9


class Tier(StrEnum):
    """Where KV lies that an engine can use again, the fastest first."""

    VRAM = "vram"
    RAM = "ram"
    NVME = "nvme"
    ARCHIVE = "archive"


@dataclass(frozen=True, order=True)
class LoadSample:
    """One load, from lookup to ready. A load from several tiers is one of the slowest of them."""

    at_unix_s: float
    tier: Tier
    stored_bytes: int  #: read from the tier, as they lie there
    tokens: int
    seconds: float  #: without the queue
    queue_s: float = 0.0
    others: float = 0.0  #: requests that ran in the engine beside it, on average

    @property
    def size_class(self) -> tuple[int, ...]:
        """Samples of one class say much the same."""
        return (self.stored_bytes.bit_length(),)

    @property
    def is_sound(self) -> bool:
        """Whether a curve can be fitted to it."""
        counts = 0 <= self.stored_bytes < _TOO_MANY and 0 <= self.tokens < _TOO_MANY
        times = self.at_unix_s, self.seconds, self.queue_s, self.others
        return counts and self.seconds >= _LEAST_S and _are_times(*times)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files."""
        return {**asdict(self), "tier": self.tier.value}


@dataclass(frozen=True, order=True)
class PrefillSample:
    """One prefill, from its first step to its last one."""

    at_unix_s: float
    from_token: int
    to_token: int  #: exclusive
    seconds: float  #: without the queue
    others: float = 0.0  #: requests that ran in the engine beside it, on average

    @property
    def size_class(self) -> tuple[int, ...]:
        """Samples of one class say much the same."""
        return self.from_token.bit_length(), (self.to_token - self.from_token).bit_length()

    @property
    def is_sound(self) -> bool:
        """Whether a curve can be fitted to it."""
        counts = 0 <= self.from_token < self.to_token < _TOO_MANY
        times = self.at_unix_s, self.seconds, self.others
        return counts and self.seconds >= _LEAST_S and _are_times(*times)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files."""
        return asdict(self)


class _Sample(Protocol):
    @property
    def at_unix_s(self) -> float: ...

    @property
    def size_class(self) -> tuple[int, ...]: ...


S = TypeVar("S", bound=_Sample)


def keep(samples: Iterable[S], most: int = MOST_SAMPLES) -> tuple[S, ...]:
    """Return the samples worth keeping, at most *most*, the oldest first.

    Each class of sizes keeps as many of its newest as any other, as far as it has them, so that
    many of one size do not push out the few of another, without which a curve has no slope.
    """
    newest_first = sorted(samples, key=lambda one: one.at_unix_s, reverse=True)
    places: dict[tuple[int, ...], int] = defaultdict(int)
    ranked = []
    for age, sample in enumerate(newest_first):
        ranked.append((places[sample.size_class], age, sample))
        places[sample.size_class] += 1
    ranked.sort(key=lambda one: one[:2])
    return tuple(sorted((one[2] for one in ranked[:most]), key=lambda one: one.at_unix_s))


def read_load(value: JsonValue) -> LoadSample | None:
    """Return the load that :meth:`LoadSample.as_json` wrote; ``None`` for anything else."""
    tier = value.get("tier") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(tier, str) or tier not in set(Tier):
        return None
    read = _read(LoadSample, {**value, "tier": Tier(tier)})
    return read if read is not None and read.is_sound else None


def read_prefill(value: JsonValue) -> PrefillSample | None:
    """Return the prefill that :meth:`PrefillSample.as_json` wrote; ``None`` for anything else."""
    read = _read(PrefillSample, value) if isinstance(value, Mapping) else None
    return read if read is not None and read.is_sound else None


T = TypeVar("T", LoadSample, PrefillSample)

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (int, float),
    "Tier": (Tier,),
}


def _read(kind: type[T], value: Mapping[str, object]) -> T | None:
    """Return the sample with exactly these fields, if each has its type."""
    names = {field.name: _TYPES[str(field.type)] for field in fields(kind)}
    if set(value) != set(names):
        return None
    if not all(type(value[name]) in types for name, types in names.items()):
        return None
    return kind(**value)  # type: ignore[arg-type]  # just checked, by name


def _are_times(*values: float) -> bool:
    return all(0.0 <= value < _TOO_MANY for value in values)
