from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sessiond.domain.curves import Trust
from sessiond.domain.estimates import NOTHING, exactly
from sessiond.domain.planner import plan, queue
from sessiond.domain.plans import Margin, PlanChoice, PlanInputs, PlanPolicy, Span
from sessiond.domain.reasons import Reason
from sessiond.domain.samples import Tier
from sessiond.testing.planning import (
    GIB,
    MIB,
    MIXED,
    curves,
    load_curve,
    prefill_curve,
    reasons,
    worked_example,
)


def test_a_fast_disk_wins() -> None:
    found = plan(worked_example(8 * GIB))
    assert found.choice is PlanChoice.LOAD
    assert found.load_tokens == 8192
    assert found.causes == ()
    assert found.load is not None
    assert found.margin_s is not None
    assert found.load.ready.likely_s == pytest.approx(0.03525, abs=1e-12)
    assert found.margin_s == pytest.approx(0.02475, abs=1e-12)
    assert (found.load.lookup_s, found.load.read_s) == (0.004, 0.03125)
    assert found.expected is found.load


def test_a_slow_disk_loses() -> None:
    found = plan(worked_example(2 * GIB))
    assert found.choice is PlanChoice.RECOMPUTE
    assert found.load_tokens == 0
    assert found.load is not None
    assert found.load.ready.likely_s == pytest.approx(0.129, abs=1e-12)
    assert found.recompute.ready.likely_s == pytest.approx(0.060, abs=1e-12)
    assert found.margin_s == pytest.approx(-0.069, abs=1e-12)
    (cause,) = found.causes
    assert cause.reason is Reason.RECOMPUTE_IS_FASTER
    assert cause.detail == "0.060 s against 0.129 s"
    assert found.expected is found.recompute


@pytest.mark.parametrize("rate", [8, 2])
def test_the_break_even_rate(rate: int) -> None:
    found = plan(worked_example(rate * GIB)).break_even_bytes_s
    assert found is not None
    assert f"{found / GIB:.3g}" == "4.46"
    at_even = plan(replace(worked_example(found), margin=Margin(0.0, 0.0)))
    assert at_even.margin_s == pytest.approx(0.0, abs=1e-12)


def test_no_rate_is_fast_enough_where_the_lookup_takes_longer_than_computing() -> None:
    inputs = worked_example(8 * GIB)
    quick = replace(inputs, curves=replace(inputs.curves, prefill=prefill_curve(0.003, 0.0, 0.0)))
    assert plan(quick).break_even_bytes_s is None


@pytest.mark.parametrize(
    ("rate", "margin", "choice"),
    [
        (4.60 * GIB, Margin(0.05, 0.0), PlanChoice.RECOMPUTE),  # wins by 1.7 ms of 60
        (4.60 * GIB, Margin(0.02, 0.0), PlanChoice.LOAD),
        (4.60 * GIB, Margin(0.0, 0.002), PlanChoice.RECOMPUTE),
        (4.60 * GIB, Margin(0.0, 0.001), PlanChoice.LOAD),
        (4.40 * GIB, Margin(0.0, 0.0), PlanChoice.RECOMPUTE),
    ],
)
def test_a_load_has_to_win_by_a_margin(rate: float, margin: Margin, choice: PlanChoice) -> None:
    assert plan(replace(worked_example(rate), margin=margin)).choice is choice


def test_a_tiny_session_is_not_loaded_from_a_slow_disk() -> None:
    known = curves(prefill_curve(0.005, 0.0002, 1e-9), load_curve(Tier.NVME, 0.010, 50 * MIB))
    tiny = PlanInputs(100, 20, (Span(Tier.NVME, 100, 3 * MIB),), known)
    found = plan(tiny)
    assert found.choice is PlanChoice.RECOMPUTE
    assert [cause.reason for cause in found.causes] == [Reason.RECOMPUTE_IS_FASTER]


def test_in_a_storm_loading_stops_paying() -> None:
    ahead = [(Tier.NVME, 256 * MIB)] * 3
    inputs = worked_example(8 * GIB)
    waited = queue(ahead, inputs.curves.loads)
    assert waited.likely_s == pytest.approx(3 * 0.03525)
    assert waited.low_s < waited.likely_s < waited.high_s
    found = plan(replace(inputs, load_queue=waited))
    assert found.choice is PlanChoice.RECOMPUTE
    assert found.load is not None
    assert found.load.load_queue_s == waited.likely_s
    busy = plan(replace(inputs, load_queue=waited, engine_queue=exactly(0.2)))
    assert busy.choice is PlanChoice.LOAD  # computing would have to wait as well
    assert queue([], inputs.curves.loads) == NOTHING


SLOW = replace(
    MIXED,
    curves=curves(MIXED.curves.prefill, *MIXED.curves.loads.values(),
                  load_curve(Tier.NVME, 0.004, GIB // 2)),
)  # fmt: skip


def test_what_lies_in_several_tiers_is_added_up() -> None:
    found = plan(MIXED)
    assert (found.choice, found.load_tokens) == (PlanChoice.LOAD, 7000)
    assert found.load is not None
    read_s = 20 / 4096 + 400 / 2048
    assert found.load.read_s == pytest.approx(read_s)
    assert found.load.lookup_s == 0.004  # the slower one
    assert found.load.prefill_s == pytest.approx(0.01 + 1000 * 0.0001)
    assert found.load.ready.likely_s == pytest.approx(0.004 + read_s + 0.11)
    assert found.recompute.prefill_from_token == 1000  # VRAM is never computed again
    assert found.recompute.ready.likely_s == pytest.approx(0.01 + 0.7)


def test_two_spans_of_one_tier_are_looked_up_once() -> None:
    whole = worked_example(8 * GIB)
    halves = Span(Tier.NVME, 4096, 128 * MIB), Span(Tier.NVME, 8192, 128 * MIB)
    assert plan(replace(whole, spans=halves)) == plan(whole)


def test_only_the_faster_tier_is_loaded_where_the_other_loses() -> None:
    found = plan(SLOW)
    assert (found.choice, found.load_tokens) == (PlanChoice.PARTIAL, 3000)
    assert reasons(found) == [Reason.RECOMPUTE_IS_FASTER]
    assert found.causes[0].detail == "from token 3000"


@pytest.mark.parametrize(
    ("change", "choice", "tokens", "why"),
    [
        ({"room_tokens": 2000}, PlanChoice.PARTIAL, 5000, [Reason.RAM_TIER_TOO_SMALL]),
        ({"room_tokens": 2999}, PlanChoice.PARTIAL, 5000, [Reason.RAM_TIER_TOO_SMALL]),
        ({"room_tokens": 4000}, PlanChoice.LOAD, 7000, []),
        ({"room_tokens": 0}, PlanChoice.PARTIAL, 3000, [Reason.RAM_TIER_TOO_SMALL]),
        ({"paused": {Tier.NVME}}, PlanChoice.PARTIAL, 3000, [Reason.LOAD_PAUSED]),
        ({"paused": {Tier.ARCHIVE}}, PlanChoice.LOAD, 7000, []),
        ({"paused": {Tier.RAM, Tier.NVME}}, PlanChoice.RECOMPUTE, 1000, [Reason.LOAD_PAUSED]),
        ({"stops": (2000, 6000, 9000, 0)}, PlanChoice.LOAD, 6000, []),
        ({"stops": (500, 1000)}, PlanChoice.RECOMPUTE, 1000, []),
        ({"policy": PlanPolicy.NEVER_LOAD}, PlanChoice.RECOMPUTE, 1000, [Reason.POLICY_NEVER_LOAD]),
        ({"policy": PlanPolicy.ALWAYS_LOAD}, PlanChoice.LOAD, 7000, []),
        ({"policy": PlanPolicy.ALWAYS_LOAD, "paused": {Tier.NVME}}, PlanChoice.LOAD, 7000, []),
        (
            {"policy": PlanPolicy.ALWAYS_LOAD, "room_tokens": 1000},
            PlanChoice.PARTIAL,
            4000,
            [Reason.RAM_TIER_TOO_SMALL],
        ),
        (
            {"policy": PlanPolicy.NEVER_LOAD, "paused": {Tier.RAM}},
            PlanChoice.RECOMPUTE,
            1000,
            [Reason.POLICY_NEVER_LOAD],
        ),
        ({"target_tokens": 2000}, PlanChoice.LOAD, 2000, []),
        ({"target_tokens": 1000}, PlanChoice.RECOMPUTE, 1000, []),
        ({"spans": ()}, PlanChoice.RECOMPUTE, 0, []),
    ],
)
def test_limits_and_policies(
    change: dict[str, Any], choice: PlanChoice, tokens: int, why: list[Reason]
) -> None:
    if "paused" in change:
        change = {**change, "paused": frozenset(change["paused"])}
    found = plan(replace(MIXED, **change))
    assert (found.choice, found.load_tokens, reasons(found)) == (choice, tokens, why)
    assert not found.is_trial


def test_always_load_loads_what_loses() -> None:
    found = plan(replace(worked_example(GIB), policy=PlanPolicy.ALWAYS_LOAD))
    assert found.choice is PlanChoice.LOAD
    assert found.margin_s is not None
    assert found.margin_s < 0.0


def test_what_cannot_be_loaded_now_is_shown_all_the_same() -> None:
    found = plan(replace(worked_example(8 * GIB), paused=frozenset({Tier.NVME})))
    assert found.choice is PlanChoice.RECOMPUTE
    assert found.load is not None
    assert found.load.load_tokens == 8192
    assert plan(replace(worked_example(GIB), spans=())).load is None


def test_while_the_engine_is_busy_a_prefix_is_loaded_for_nothing() -> None:
    waiting = replace(worked_example(GIB), engine_queue=exactly(0.1))
    known = curves(prefill_curve(0.0, 0.060 / 8192, 0.0), load_curve(Tier.NVME, 0.004, GIB))
    found = plan(replace(waiting, curves=known))
    # 0.1 s of queue are enough for 98 of 256 MiB.
    assert found.choice is PlanChoice.PARTIAL
    assert found.load_tokens == pytest.approx(8192 * 98 / 256, abs=256)


def uncertain(rate: float, spread: float, objective_s: float) -> PlanInputs:
    """Return the worked example with a disk that is fast on some days only."""
    disk = replace(load_curve(Tier.NVME, 0.004, rate), trust=Trust(64, 64.0, spread))
    known = curves(worked_example(rate).curves.prefill, disk)
    return replace(
        worked_example(rate), curves=known, policy=PlanPolicy.OBJECTIVE, objective_s=objective_s
    )


@pytest.mark.parametrize(
    ("rate", "spread", "objective_s", "choice", "why"),
    [
        (8 * GIB, 0.05, 0.100, PlanChoice.LOAD, []),  # both are sure: the faster one
        (2 * GIB, 0.05, 0.500, PlanChoice.RECOMPUTE, [Reason.RECOMPUTE_IS_FASTER]),
        (8 * GIB, 1.00, 0.080, PlanChoice.RECOMPUTE, [Reason.RECOMPUTE_IS_SURER]),
        (8 * GIB, 1.00, 0.050, PlanChoice.LOAD, []),  # only the load has a chance
        (2 * GIB, 1.00, 0.050, PlanChoice.LOAD, []),  # computing has none at all
        (2 * GIB, 0.05, 0.050, PlanChoice.RECOMPUTE, [Reason.RECOMPUTE_IS_FASTER]),
    ],
)
def test_an_objective_asks_for_what_is_surely_in_time(
    rate: float, spread: float, objective_s: float, choice: PlanChoice, why: list[Reason]
) -> None:
    found = plan(uncertain(rate, spread, objective_s))
    assert (found.choice, reasons(found)) == (choice, why)
    assert found.objective_s == objective_s


def test_an_objective_may_ask_for_a_part() -> None:
    wild = replace(SLOW.curves.loads[Tier.NVME], bytes_per_s=10 * GIB, trust=Trust(64, 64.0, 1.5))
    inputs = replace(
        SLOW,
        curves=curves(SLOW.curves.prefill, *SLOW.curves.loads.values(), wild),
        policy=PlanPolicy.OBJECTIVE,
        objective_s=0.6,
    )
    found = plan(inputs)
    assert (found.choice, found.load_tokens) == (PlanChoice.PARTIAL, 3000)
    assert reasons(found) == [Reason.RECOMPUTE_IS_SURER]


def test_the_policy_objective_without_one_is_auto() -> None:
    inputs = worked_example(8 * GIB)
    assert plan(replace(inputs, policy=PlanPolicy.OBJECTIVE)).choice is plan(inputs).choice
