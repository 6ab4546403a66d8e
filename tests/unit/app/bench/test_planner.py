"""The arithmetic of ``sessiond bench planner``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.app.bench.planner_trials import Trial, load_seconds, summary
from sessiond.domain.timing import TurnTiming

TRIAL = Trial(
    tokens=512,
    tier="nvme",
    streams=0,
    load_first=True,
    choice="load",
    planned_load_s=0.9,
    planned_recompute_s=2.5,
    load_s=1.0,
    recompute_s=2.0,
    load_ready_s=1.1,
    recompute_ready_s=2.1,
)


def test_errors_are_parts_of_what_was_measured() -> None:
    assert TRIAL.load_error == pytest.approx(0.1)
    assert TRIAL.recompute_error == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("choice", "chosen_s"), [("load", 1.1), ("partial", 1.1), ("recompute", 2.1)]
)
def test_what_was_chosen(choice: str, chosen_s: float) -> None:
    one = replace(TRIAL, choice=choice)
    assert (one.best_s, one.chosen_s) == (1.1, chosen_s)


def test_the_report() -> None:
    wrong = replace(TRIAL, tier="ram", choice="recompute", planned_load_s=1.3)
    found = summary([TRIAL, TRIAL, wrong])
    assert found["resumes"] == 3
    assert found["load_error_median"] == pytest.approx(0.1)
    assert found["recompute_error_median"] == pytest.approx(0.25)
    assert found["regret"] == pytest.approx(1.0 / 3.3)
    assert found["by_tier"]["nvme"] == {
        "resumes": 2,
        "load_error_median": pytest.approx(0.1),
        "regret": 0.0,
    }
    assert found["by_tier"]["ram"]["regret"] == pytest.approx(1.0 / 1.1)
    assert found["choices"] == {"load": 2, "recompute": 1}
    assert found["trials"][2]["load_error"] == pytest.approx(0.3)


def test_a_load_takes_what_is_waited_for_until_its_kv_is_there() -> None:
    timing = TurnTiming(lookup_s=0.1, queue_s=0.2, load_s=0.4, waiting_s=1.0, prefill_s=2.0)
    assert load_seconds(timing) == pytest.approx(0.7)
