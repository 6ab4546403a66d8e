from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.domain.curves import Trust
from sessiond.domain.planner import plan
from sessiond.domain.plans import PlanChoice, PlanPolicy
from sessiond.domain.reasons import Reason
from sessiond.domain.samples import Tier
from sessiond.testing.planning import GIB, MIB, MIXED, reasons, worked_example

RECENT, FEW, OLD = Trust(9, 3.0, 0.05), Trust(9, 0.1, 0.05), Trust(9, 3.0, 0.05, age_s=1000.0)


@pytest.mark.parametrize(
    ("rate", "trust", "tokens"),
    [
        (2 * GIB, RECENT, 0),
        (2 * GIB, FEW, 1024),  # an eighth
        (2 * GIB, OLD, 1024),
        (200 * MIB, FEW, 256),  # less, where it may take long
        (MIB, FEW, 0),  # or nothing
        (8 * GIB, FEW, 8192),  # it wins as far as is known: no trial is needed
        (8 * GIB, OLD, 8192),
    ],
)
def test_a_little_is_loaded_from_a_tier_of_which_little_is_known(
    rate: float, trust: Trust, tokens: int
) -> None:
    found = plan(worked_example(rate, trust))
    assert found.load_tokens == tokens
    assert found.is_trial is (0 < tokens < 8192)
    assert found.expected.ready.likely_s <= 1.25 * 0.060 + 0.05
    if tokens < 8192:
        assert reasons(found) == [Reason.RECOMPUTE_IS_FASTER]


@pytest.mark.parametrize("rate", [8 * GIB, 2 * GIB])
def test_the_trial_of_a_breaker_is_small_whatever_the_curve_says(rate: float) -> None:
    paused = replace(worked_example(rate), paused=frozenset({Tier.NVME}))
    assert plan(paused).choice is PlanChoice.RECOMPUTE
    found = plan(replace(worked_example(rate), trials=frozenset({Tier.NVME})))
    assert (found.choice, found.load_tokens) == (PlanChoice.PARTIAL, 1024)
    assert found.is_trial
    assert reasons(found) == [Reason.LOAD_PAUSED]


def test_a_trial_keeps_what_is_loaded_anyway_and_all_limits() -> None:
    tried = replace(MIXED, trials=frozenset({Tier.NVME}))
    found = plan(tried)
    assert (found.load_tokens, found.is_trial) == (4000, True)
    found = plan(replace(tried, room_tokens=0))
    assert (found.load_tokens, found.is_trial) == (3000, False)
    found = plan(replace(MIXED, paused=frozenset({Tier.RAM}), trials=frozenset({Tier.NVME})))
    assert (found.load_tokens, found.is_trial) == (1000, False)


@pytest.mark.parametrize("policy", [PlanPolicy.NEVER_LOAD, PlanPolicy.ALWAYS_LOAD])
def test_a_fixed_policy_tries_nothing(policy: PlanPolicy) -> None:
    inputs = replace(worked_example(2 * GIB, FEW), policy=policy)
    assert not plan(replace(inputs, trials=frozenset({Tier.NVME}))).is_trial


@pytest.mark.parametrize(("objective_s", "tries"), [(0.5, True), (0.07, False), (None, True)])
def test_an_objective_is_not_risked_for_a_trial(objective_s: float | None, *, tries: bool) -> None:
    inputs = replace(worked_example(2 * GIB), trials=frozenset({Tier.NVME}))
    inputs = replace(inputs, policy=PlanPolicy.OBJECTIVE, objective_s=objective_s)
    assert plan(inputs).is_trial is tries
