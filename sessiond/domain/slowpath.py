"""Restore paths that lose against computing, time and again, and what makes them: pure rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.curves import PrefillCurve
from sessiond.domain.samples import Tier
from sessiond.domain.timing import TurnTiming

#: So many of the newest loads are looked at.
MOST_RESTORES: Final = 16
#: Fewer say nothing about a path.
_LEAST_RESTORES: Final = 5
#: Loads of so long ago say nothing of now.
_HORIZON_S: Final = 24 * 3600.0
#: A path loses if its loads took so many times as long as computing, and until they take no longer.
_LOSS: Final = 1.1


class Stage(StrEnum):
    """Where the time of a load goes."""

    QUEUE = "queue"  #: waiting for room in the RAM tier
    LOOKUP = "lookup"  #: until it was known what can be loaded
    DISK = "disk"  #: waiting for the device
    DECODE = "decode"  #: verifying and decoding
    BUS = "bus"  #: copying into the engine's KV, and waiting for its steps


#: What a stage's slowness is, and what can be done about it.
_WORDS: Final = {
    Stage.QUEUE: (
        "waiting for room in the RAM tier",
        "Give the engine a larger RAM tier ('sessiond engine --ram-tier-bytes').",
    ),
    Stage.LOOKUP: (
        "looking up what can be loaded",
        "Look for a busy device or processor: 'sessiond doctor' measures both.",
    ),
    Stage.DISK: (
        "waiting for the device",
        "Put the store on a faster or less busy device: 'sessiond doctor' measures it.",
    ),
    Stage.DECODE: (
        "verifying and decoding",
        "Give the mover more processors, or another codec: 'sessiond doctor' measures each.",
    ),
    Stage.BUS: (
        "copying into the engine's KV",
        "Look for other work in the engine; 'sessiond doctor' measures memory.",
    ),
}


def computing_s(timing: TurnTiming, prefill: PrefillCurve) -> float:
    """Return what it would have taken to compute the tokens that a request loaded."""
    end = timing.prefill_from_token
    begin = max(0, end - timing.disk_tokens - timing.ram_tokens)
    return prefill.seconds(begin, end, timing.others_running)


@dataclass(frozen=True)
class Restore:
    """One request for which KV was loaded."""

    at_unix_s: float
    timing: TurnTiming

    @property
    def seconds(self) -> float:
        """What the load took, its queue included."""
        return self.timing.queue_s + self.timing.lookup_s + self.timing.load_s

    def stages(self) -> dict[Stage, float]:
        """Return where the time went; together it is :attr:`seconds`.

        Reads and decoding are measured in threads that overlap, so what they add up to is scaled
        to the load where it is more. What is left of the load is the bus's, which is the least
        that it can be.
        """
        timing = self.timing
        busy_s = timing.read_s + timing.decode_s
        scale = min(1.0, timing.load_s / busy_s) if busy_s > 0.0 else 0.0
        disk_s, decode_s = timing.read_s * scale, timing.decode_s * scale
        return {
            Stage.QUEUE: timing.queue_s,
            Stage.LOOKUP: timing.lookup_s,
            Stage.DISK: disk_s,
            Stage.DECODE: decode_s,
            Stage.BUS: max(0.0, timing.load_s - disk_s - decode_s),
        }


@dataclass(frozen=True)
class SlowPath:
    """A restore path that loses against computing."""

    tier: Tier
    cause: Stage  #: the longest one
    shares: tuple[tuple[Stage, float], ...]  #: of the time, by stage
    restores: int  #: that were looked at
    load_s: float  #: what they took together
    recompute_s: float  #: what computing the same tokens would have taken
    since_unix_s: float  #: when it was noticed

    @property
    def sentence(self) -> str:
        """What is wrong."""
        what, _ = _WORDS[self.cause]
        share = dict(self.shares)[self.cause]
        return (
            f"The last {self.restores} loads from {self.tier} took {self.load_s:.3g} s together; "
            f"computing would have taken {self.recompute_s:.3g} s. {share:.0%} of it was {what}."
        )

    @property
    def hint(self) -> str:
        """What can be done about it."""
        return _WORDS[self.cause][1]

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in answers and events."""
        return {
            "tier": self.tier.value,
            "cause": self.cause.value,
            "sentence": self.sentence,
            "hint": self.hint,
            "shares": {stage.value: share for stage, share in self.shares},
            "restores": self.restores,
            "load_s": self.load_s,
            "recompute_s": self.recompute_s,
            "since_unix_s": self.since_unix_s,
        }


def diagnose(
    tier: Tier,
    restores: Sequence[Restore],
    prefill: PrefillCurve,
    before: SlowPath | None = None,
) -> SlowPath | None:
    """Return what is wrong with a path, or ``None`` if nothing is, or too little is known.

    It loses if its loads took longer than computing would have, both all together and most of
    them alone: neither one stall nor many small loads of no account make it slow.

    :param tier: that all of *restores* are from
    :param restores: the newest last
    :param prefill: one that was measured
    :param before: what was found last time: a path is slow until its loads take no longer
    """
    known = [
        one
        for one in restores[-MOST_RESTORES:]
        if one.seconds > 0.0 and restores[-1].at_unix_s - one.at_unix_s <= _HORIZON_S
    ]
    if len(known) < _LEAST_RESTORES or not prefill.trust.samples:
        return None
    would_s = [computing_s(one.timing, prefill) for one in known]
    load_s, recompute_s = sum(one.seconds for one in known), sum(would_s)
    ratio = median(one.seconds / max(s, 1e-9) for one, s in zip(known, would_s, strict=True))
    limit = 1.0 if before else _LOSS
    if load_s <= limit * recompute_s or ratio <= limit:
        return None
    shares = _shares(known, load_s)
    since_unix_s = before.since_unix_s if before else known[-1].at_unix_s
    cause = max(shares, key=lambda stage: shares[stage])
    return SlowPath(
        tier, cause, tuple(shares.items()), len(known), load_s, recompute_s, since_unix_s
    )


def _shares(known: Sequence[Restore], load_s: float) -> dict[Stage, float]:
    parts = [one.stages() for one in known]
    return {stage: sum(part[stage] for part in parts) / load_s for stage in Stage}
