"""What one request's timing says of loads and prefills: pure rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.samples import LoadSample, PrefillSample, Tier

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.plans import Plan
    from sessiond.domain.timing import TurnTiming


@dataclass(frozen=True)
class Errors:
    """How far a plan's estimates were from what was measured: parts of the latter."""

    load: float | None  #: ``None``: nothing was loaded
    recompute: float | None  #: ``None``: not all of the target was computed


def load_sample(timing: TurnTiming, engine: EngineInfo, at_unix_s: float) -> LoadSample | None:
    """Return the load that a request waited for; of several tiers, it counts as the slowest's."""
    seconds = timing.lookup_s + timing.load_s
    if timing.load_s <= 0.0:
        return None
    tokens = timing.disk_tokens + timing.ram_tokens
    if timing.disk_tokens and timing.read_bytes:
        tier, size = Tier.NVME, timing.read_bytes
    elif timing.ram_tokens and not timing.disk_tokens:
        tier, size = Tier.RAM, timing.ram_tokens // engine.chunk_tokens * engine.chunk_bytes
    else:
        return None
    others = timing.others_running
    return LoadSample(at_unix_s, tier, size, tokens, seconds, timing.queue_s, others)


def prefill_sample(timing: TurnTiming, at_unix_s: float) -> PrefillSample | None:
    """Return what a request computed before its first token."""
    begin, end = timing.prefill_from_token, timing.prefill_to_token
    if timing.prefill_s <= 0.0 or end <= begin:
        return None
    return PrefillSample(at_unix_s, begin, end, timing.prefill_s, timing.others_running)


def errors_of(plan: Plan, timing: TurnTiming) -> Errors:
    """Compare a plan with the request that it was for.

    Only like is compared with like: a load of as much as was planned, a prefill of the whole
    target.
    """
    load_s = timing.lookup_s + timing.load_s + timing.queue_s
    loaded = timing.disk_tokens or timing.ram_tokens
    way = plan.load
    load = None
    if way is not None and loaded and timing.prefill_from_token == way.load_tokens and load_s > 0.0:
        planned_s = way.lookup_s + way.load_queue_s + way.read_s
        load = abs(planned_s - load_s) / load_s
    recompute = None
    begins = timing.prefill_from_token == plan.recompute.prefill_from_token
    if begins and timing.prefill_to_token >= plan.target_tokens > 0 and timing.prefill_s > 0.0:
        tokens = timing.prefill_to_token - timing.prefill_from_token
        planned = plan.target_tokens - plan.recompute.prefill_from_token
        if planned > 0 and tokens <= 1.25 * planned:  # what a turn adds is not in the plan
            recompute = abs(plan.recompute.prefill_s - timing.prefill_s) / timing.prefill_s
    return Errors(load, recompute)
