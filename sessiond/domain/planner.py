"""Load or recompute: a pure rule. See ``domain.plans`` for what goes in and comes out.

For each prefix that could be loaded, ``ready = max(load, engine queue) + prefill of the rest``.
Within one tier that is concave: what a byte costs to read stays the same, and what a token costs
to compute grows. So only the ends of the pieces, in which nothing else changes, can be best.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sessiond.domain.courses import Course
from sessiond.domain.curves import LoadCurve
from sessiond.domain.estimates import NOTHING, SURE, Estimate
from sessiond.domain.plans import Plan, PlanChoice, PlanInputs, PlanPolicy, Way
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.samples import Tier

#: A curve with less than this in fresh samples may be wrong.
_LITTLE_KNOWN: Final = 0.5
#: And so may one whose newest sample is older than this.
_LONG_AGO_S: Final = 900.0
#: What a trial may cost more than the best way: a part of that, and seconds.
_TRIAL_PART: Final = 0.25
_TRIAL_S: Final = 0.05


def plan(inputs: PlanInputs) -> Plan:
    """Return the decision for one resume: how much to load, and both times.

    Takes some ten microseconds for each span; no clock, no I/O.
    """
    course = Course(inputs)
    recompute = course.way(course.free_tokens)
    limit = _limit(inputs, course, inputs.paused | inputs.trials)
    ways = [course.way(stop) for stop in _candidates(inputs, course, limit.tokens)]
    # If nothing is loaded, this is what it is compared with, even if it cannot be loaded now.
    whole = course.way(course.end_token) if course.stops else None
    chosen = _choose(inputs, recompute, ways)
    chosen = _trial(inputs, course, recompute, chosen) or chosen
    load = chosen.load or whole
    return Plan(
        choice=_name(chosen.load, course),
        policy=inputs.policy,
        target_tokens=inputs.target_tokens,
        load_tokens=chosen.load.load_tokens if chosen.load else course.free_tokens,
        load=load,
        recompute=recompute,
        margin_s=recompute.ready.likely_s - load.ready.likely_s if load else None,
        break_even_bytes_s=_break_even(load, recompute) if load else None,
        causes=_causes(inputs, limit, chosen),
        is_trial=chosen.is_trial,
        objective_s=inputs.objective_s if inputs.policy is PlanPolicy.OBJECTIVE else None,
    )


def queue(
    ahead: Iterable[tuple[Tier, int]], loads: Mapping[Tier, LoadCurve], others: float = 0.0
) -> Estimate:
    """Return how long loads take that go before, one after the other over the same path.

    :param ahead: the tier of each and its stored bytes
    """
    total = NOTHING
    for tier, stored_bytes in ahead:
        total += loads[tier].estimate(stored_bytes, others)
    return total


@dataclass(frozen=True)
class _Limit:
    """How far a load may go now."""

    tokens: int
    cause: Cause | None = None  # of the limit, where it is less than what is stored


@dataclass(frozen=True)
class _Chosen:
    """A way, and why it is not the one that loads the most."""

    load: Way | None  # ``None``: recompute
    cause: Cause | None = None
    is_trial: bool = False


def _limit(inputs: PlanInputs, course: Course, paused: frozenset[Tier]) -> _Limit:
    """Return the nearest of all limits."""
    limits = [_Limit(course.end_token)]
    if inputs.policy is not PlanPolicy.ALWAYS_LOAD:
        limits += [
            _Limit(begin, Cause(Reason.LOAD_PAUSED, f"from {span.tier.value}"))
            for begin, span in course.spans
            if span.tier in paused
        ]
    if inputs.room_tokens is not None:
        room = course.resident_tokens + inputs.room_tokens
        detail = f"room for {inputs.room_tokens} tokens"
        limits.append(_Limit(room, Cause(Reason.RAM_TIER_TOO_SMALL, detail)))
    return min(limits, key=lambda limit: limit.tokens)  # of equals the first: no limit at all


def _candidates(inputs: PlanInputs, course: Course, limit_tokens: int) -> list[int]:
    """Return the stops that can be best: both neighbours of each place where something changes."""
    allowed = course.stops[: bisect_right(course.stops, limit_tokens)]
    found = {0, len(allowed) - 1}
    if inputs.engine_queue.likely_s > 0.0:  # until the engine is free, a longer load costs nothing
        waited = bisect_left(
            allowed, inputs.engine_queue.likely_s, key=lambda stop: course.load(stop).likely_s
        )
        found |= {waited - 1, waited}
    for _, span in course.spans:
        after = bisect_right(allowed, span.to_token)
        found |= {after - 1, after}
    return [allowed[number] for number in sorted(found) if 0 <= number < len(allowed)]


def _choose(inputs: PlanInputs, recompute: Way, ways: list[Way]) -> _Chosen:
    if inputs.policy is PlanPolicy.NEVER_LOAD:
        return _Chosen(None, Cause(Reason.POLICY_NEVER_LOAD))
    if not ways:
        return _Chosen(None)
    if inputs.policy is PlanPolicy.ALWAYS_LOAD:
        return _Chosen(ways[-1])
    first = _first_ready(inputs, recompute, ways)
    if inputs.policy is PlanPolicy.OBJECTIVE and inputs.objective_s is not None:
        return _surest(inputs.objective_s, first, recompute, ways)
    return first


def _first_ready(inputs: PlanInputs, recompute: Way, ways: list[Way]) -> _Chosen:
    """Return the way that is likely to be ready first; a load has to win by the margin."""
    best = min(ways, key=_earliest)
    recompute_s, load_s = recompute.ready.likely_s, best.ready.likely_s
    if load_s + inputs.margin.of(recompute_s) <= recompute_s:
        if best is ways[-1]:
            return _Chosen(best)
        return _Chosen(best, Cause(Reason.RECOMPUTE_IS_FASTER, f"from token {best.load_tokens}"))
    detail = f"{recompute_s:.3f} s against {ways[-1].ready.likely_s:.3f} s"
    return _Chosen(None, Cause(Reason.RECOMPUTE_IS_FASTER, detail))


def _surest(objective_s: float, first: _Chosen, recompute: Way, ways: list[Way]) -> _Chosen:
    """Return the way that is most surely in time; of sure ones, the one that is ready first."""
    way = first.load or recompute
    if way.ready.sureness(objective_s) >= SURE:
        return first
    surest = max(
        [recompute, *ways],
        key=lambda one: (one.ready.sureness(objective_s), -one.ready.likely_s, one.load_tokens),
    )
    if surest is way:
        return first
    if surest is ways[-1]:
        return _Chosen(surest)
    surer = Cause(Reason.RECOMPUTE_IS_SURER, f"from token {surest.load_tokens}")
    return _Chosen(None if surest is recompute else surest, surer)


def _trial(inputs: PlanInputs, course: Course, recompute: Way, chosen: _Chosen) -> _Chosen | None:
    """Return a way with a small load from a tier of which too little is known, if one is due.

    Without it, a tier that was slow once would be taken for slow for ever. It costs little if
    the curve is right, and little as well if it is wrong by far.
    """
    if inputs.policy not in (PlanPolicy.AUTO, PlanPolicy.OBJECTIVE):
        return None
    best = chosen.load or recompute
    affordable_s = best.ready.likely_s * (1.0 + _TRIAL_PART) + _TRIAL_S
    end = _limit(inputs, course, inputs.paused).tokens
    for begin, span in reversed(course.spans):
        left_out = best.load_tokens <= begin < end
        trust = inputs.curves.loads[span.tier].trust
        doubtful = trust.weight < _LITTLE_KNOWN or trust.age_s > _LONG_AGO_S
        if not left_out or not (doubtful or span.tier in inputs.trials):
            continue
        for stop in course.small_parts(begin, min(end, span.to_token)):
            way = course.way(stop)
            if way.ready.likely_s <= affordable_s and _is_in_time(inputs, way):
                return replace(chosen, load=way, is_trial=True)
    return None


def _is_in_time(inputs: PlanInputs, way: Way) -> bool:
    if inputs.policy is not PlanPolicy.OBJECTIVE or inputs.objective_s is None:
        return True
    return way.ready.sureness(inputs.objective_s) >= SURE


def _causes(inputs: PlanInputs, limit: _Limit, chosen: _Chosen) -> tuple[Cause, ...]:
    limiting = limit.cause if inputs.policy is not PlanPolicy.NEVER_LOAD else None
    return tuple(cause for cause in (limiting, chosen.cause) if cause is not None)


def _name(load: Way | None, course: Course) -> PlanChoice:
    if load is None:
        return PlanChoice.RECOMPUTE
    return PlanChoice.LOAD if load.load_tokens == course.end_token else PlanChoice.PARTIAL


def _break_even(load: Way, recompute: Way) -> float | None:
    """Return the rate of reading at which the load would be ready when computing is."""
    rest_s = load.lookup_s + load.load_queue_s + load.prefill_s
    read_s = recompute.ready.likely_s - rest_s
    return load.stored_bytes / read_s if read_s > 0.0 and load.stored_bytes else None


def _earliest(way: Way) -> tuple[float, int]:
    return way.ready.likely_s, -way.load_tokens
