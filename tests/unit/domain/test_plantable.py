from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.domain.estimates import Estimate
from sessiond.domain.plans import Plan, PlanChoice, PlanPolicy, Way
from sessiond.domain.plantable import plan_table
from sessiond.domain.reasons import Cause, Reason

GIB = 1 << 30
LOAD = Way(
    8192, Estimate(0.03525, 0.030, 0.045), 0.004, 0.0, 0.03125, GIB // 4, 0.0, 0.0, 8192, 8192
)
RECOMPUTE = Way(0, Estimate(0.06, 0.05, 0.07), 0.0, 0.0, 0.0, 0, 0.0, 0.06, 0, 8192)
WINS = Plan(
    PlanChoice.LOAD, PlanPolicy.AUTO, 8192, 8192, LOAD, RECOMPUTE, 0.02475, 4.4643 * GIB
)  # fmt: skip
READ = "lookup 0.004 s, queue 0.000 s, read 0.031 s"
TRIAL = "as a trial, to measure what a load takes now"


def test_a_load_that_wins() -> None:
    assert plan_table(WINS) == [
        (
            "load",
            f"{READ} (256 MiB, 8,192 tokens), ready in 0.035 s (0.030 to 0.045)",
        ),
        (
            "recompute",
            "queue 0.000 s, prefill 0.060 s (8,192 tokens), ready in 0.060 s (0.050 to 0.070)",
        ),
        ("choice", "load, wins by 0.025 s; break-even 4.46 GiB/s"),
        ("policy", "auto"),
    ]


def test_a_part_says_what_is_computed() -> None:
    part = replace(
        LOAD, load_tokens=6144, engine_queue_s=0.5, prefill_s=0.02, prefill_from_token=6144
    )
    cause = Cause(Reason.RAM_TIER_TOO_SMALL, "room for 6144 tokens")
    rows = plan_table(replace(WINS, choice=PlanChoice.PARTIAL, load=part, causes=(cause,)))
    assert rows[0][1] == (
        f"{READ} (256 MiB, 6,144 tokens), "
        "then queue 0.500 s, prefill 0.020 s (2,048 tokens), ready in 0.035 s (0.030 to 0.045)"
    )
    why = "The RAM tier holds fewer chunks than the context has (room for 6144 tokens)."
    assert rows[-1] == ("why", why)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            replace(WINS, choice=PlanChoice.RECOMPUTE, margin_s=-0.069, break_even_bytes_s=3e6),
            "recompute, wins by 0.069 s; break-even 2.86 MiB/s",
        ),
        (
            replace(WINS, choice=PlanChoice.RECOMPUTE, break_even_bytes_s=None),
            "recompute, loses by 0.025 s; no rate of reading would be fast enough",
        ),
        (
            replace(WINS, margin_s=-0.5, is_trial=True),
            f"load, {TRIAL}, loses by 0.500 s; break-even 4.46 GiB/s",
        ),
        (
            replace(WINS, choice=PlanChoice.RECOMPUTE, load=None, margin_s=None),
            "recompute",
        ),
    ],
)
def test_the_choice_in_words(plan: Plan, words: str) -> None:
    assert dict(plan_table(plan))["choice"] == words


def test_without_anything_stored_there_is_no_load() -> None:
    nothing = replace(WINS, choice=PlanChoice.RECOMPUTE, load=None, margin_s=None)
    assert dict(plan_table(nothing))["load"] == "nothing is stored that can be loaded"


@pytest.mark.parametrize(("objective_s", "end"), [(0.1, "met"), (0.03, "missed")])
def test_an_objective_is_likely_met_or_missed(objective_s: float, end: str) -> None:
    plan = replace(WINS, policy=PlanPolicy.OBJECTIVE, objective_s=objective_s)
    assert dict(plan_table(plan))["policy"] == f"objective of {objective_s:.3f} s, likely {end}"
