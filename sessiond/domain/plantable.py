"""A plan as a small table, for people: the command line and the documentation print it."""

from __future__ import annotations

from typing import Final

from sessiond.domain.estimates import Estimate
from sessiond.domain.plans import Plan, PlanPolicy, Way

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


def plan_table(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a plan: what each is about, and words and numbers."""
    rows = [
        ("load", _load_words(plan.load) if plan.load else "nothing is stored that can be loaded"),
        ("recompute", f"{_compute_words(plan.recompute)}, {_ready(plan.recompute.ready)}"),
        ("choice", _choice_words(plan)),
        ("policy", _policy_words(plan)),
    ]
    return rows + [("why", cause.in_words) for cause in plan.causes]


def _load_words(way: Way) -> str:
    words = (
        f"lookup {_seconds(way.lookup_s)}, queue {_seconds(way.load_queue_s)}, "
        f"read {_seconds(way.read_s)} ({_bytes(way.stored_bytes)}, {way.load_tokens:,} tokens)"
    )
    if way.prefill_to_token > way.prefill_from_token:
        words += f", then {_compute_words(way)}"
    return f"{words}, {_ready(way.ready)}"


def _compute_words(way: Way) -> str:
    tokens = way.prefill_to_token - way.prefill_from_token
    return (
        f"queue {_seconds(way.engine_queue_s)}, prefill {_seconds(way.prefill_s)} "
        f"({tokens:,} tokens)"
    )


def _choice_words(plan: Plan) -> str:
    words = plan.choice.value
    if plan.is_trial:
        words += ", as a trial, to measure what a load takes now"
    if plan.margin_s is not None:
        ahead = (plan.margin_s >= 0.0) == plan.loads
        words += f", {'wins' if ahead else 'loses'} by {_seconds(abs(plan.margin_s))}"
    if plan.load is None:
        return words
    if plan.break_even_bytes_s is None:
        return f"{words}; no rate of reading would be fast enough"
    return f"{words}; break-even {_rate(plan.break_even_bytes_s)}"


def _policy_words(plan: Plan) -> str:
    if plan.objective_s is None:
        return plan.policy.value
    late = plan.expected.ready.likely_s > plan.objective_s
    return (
        f"{PlanPolicy.OBJECTIVE.value} of {_seconds(plan.objective_s)}, "
        f"likely {'missed' if late else 'met'}"
    )


def _ready(time: Estimate) -> str:
    return f"ready in {_seconds(time.likely_s)} ({time.low_s:.3f} to {time.high_s:.3f})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s"


def _bytes(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB"


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= _GIB:
        return f"{bytes_per_s / _GIB:.3g} GiB/s"
    return f"{bytes_per_s / _MIB:.3g} MiB/s"
