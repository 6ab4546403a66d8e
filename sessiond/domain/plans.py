"""Plans: the decision "load or recompute" for one resume, and the two times behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sessiond.domain.calibration import ASSUMED, Curves
from sessiond.domain.canonical import JsonValue
from sessiond.domain.estimates import NOTHING, Estimate
from sessiond.domain.reasons import Cause
from sessiond.domain.samples import Tier


class PlanPolicy(StrEnum):
    """How an operator or a tenant wants it decided."""

    AUTO = "auto"  #: whichever is ready first
    ALWAYS_LOAD = "always_load"  #: all that can be loaded
    NEVER_LOAD = "never_load"
    OBJECTIVE = "objective"  #: whichever is most surely ready within a time


class PlanChoice(StrEnum):
    """What a plan is for."""

    LOAD = "load"
    PARTIAL = "partial"  #: load a part, and compute the rest
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a context that lie in one tier."""

    tier: Tier
    to_token: int  #: exclusive; it begins where the span before it ends
    stored_bytes: int  #: of these tokens, as they lie there; of VRAM, it does not matter


@dataclass(frozen=True)
class Margin:
    """By how much a load must win.

    A load that is as fast as computing is no gain: it may fail and be computed after all, and it
    takes room in the RAM tier. But it leaves the processor to others, so little is enough.
    """

    part: float = 0.05  #: of the time that computing takes
    seconds: float = 0.001

    def of(self, recompute_s: float) -> float:
        """Return the seconds by which a load must win against *recompute_s*."""
        return max(self.seconds, self.part * recompute_s)


@dataclass(frozen=True)
class PlanInputs:
    """All that a plan is made from."""

    target_tokens: int  #: the prefix that is to be ready, in whole chunks
    chunk_tokens: int
    #: The fastest tier first, as the engine finds them. Tokens beyond the last are in no tier.
    spans: tuple[Span, ...]
    curves: Curves = ASSUMED
    policy: PlanPolicy = PlanPolicy.AUTO
    objective_s: float | None = None  #: of the policy ``objective``
    load_queue: Estimate = NOTHING  #: until the load can begin: see ``planner.queue``
    engine_queue: Estimate = NOTHING  #: until the engine can begin to compute
    others: float = 0.0  #: requests that run in the engine beside it
    room_tokens: int | None = None  #: that the RAM tier can take; ``None``: all
    paused: frozenset[Tier] = frozenset()  #: whose breaker lets no load pass
    trials: frozenset[Tier] = frozenset()  #: whose breaker wants one load to be tried
    #: The only prefixes that can be loaded, such as with sliding windows; empty: whole chunks.
    stops: tuple[int, ...] = ()
    margin: Margin = field(default_factory=Margin)


@dataclass(frozen=True)
class Way:
    """How long one way takes, and its parts, which may overlap: ``ready`` is not their sum."""

    load_tokens: int  #: that are loaded; the rest of the target is computed
    ready: Estimate
    lookup_s: float = 0.0  #: what a load takes whatever its size
    load_queue_s: float = 0.0
    read_s: float = 0.0  #: to read, verify, decode and copy
    stored_bytes: int = 0  #: that are read
    engine_queue_s: float = 0.0
    prefill_s: float = 0.0
    prefill_from_token: int = 0
    prefill_to_token: int = 0

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in answers and events."""
        return {
            "load_tokens": self.load_tokens,
            "ready": self.ready.as_json(),
            "lookup_s": self.lookup_s,
            "load_queue_s": self.load_queue_s,
            "read_s": self.read_s,
            "stored_bytes": self.stored_bytes,
            "engine_queue_s": self.engine_queue_s,
            "prefill_s": self.prefill_s,
            "prefill_from_token": self.prefill_from_token,
            "prefill_to_token": self.prefill_to_token,
        }


@dataclass(frozen=True)
class Plan:
    """What is to be done, and why."""

    choice: PlanChoice
    policy: PlanPolicy
    target_tokens: int
    load_tokens: int  #: to be loaded, from the beginning; those in VRAM are among them
    load: Way | None  #: the best way with a load; ``None``: nothing can be loaded
    recompute: Way
    #: By so much the load is likely ready earlier; below 0, later. ``None`` without a load.
    margin_s: float | None
    #: At this effective rate both would be ready at once; ``None``: at none.
    break_even_bytes_s: float | None
    #: Why not all is loaded, the most important first; empty if all is.
    causes: tuple[Cause, ...] = ()
    is_trial: bool = False  #: chosen to measure, not because it is likely to be faster
    objective_s: float | None = None

    @property
    def expected(self) -> Way:
        """The way that was chosen."""
        return self.recompute if self.load is None or not self.loads else self.load

    @property
    def loads(self) -> bool:
        """Whether something is loaded."""
        return self.choice is not PlanChoice.RECOMPUTE

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in answers and events."""
        return {
            "choice": self.choice.value,
            "policy": self.policy.value,
            "target_tokens": self.target_tokens,
            "load_tokens": self.load_tokens,
            "load": self.load.as_json() if self.load else None,
            "recompute": self.recompute.as_json(),
            "margin_s": self.margin_s,
            "break_even_bytes_s": self.break_even_bytes_s,
            "causes": [cause.as_json() for cause in self.causes],
            "is_trial": self.is_trial,
            "objective_s": self.objective_s,
        }
