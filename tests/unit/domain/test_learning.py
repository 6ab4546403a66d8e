"""Planner, curves and breaker together, beside a disk that changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sessiond.domain.breaker import Breaker, BreakerState, Passage
from sessiond.domain.calibration import ASSUMED, Calibration
from sessiond.domain.curves import ASSUMED_LOADS, LoadCurve, PrefillCurve, fit_load
from sessiond.domain.planner import plan
from sessiond.domain.plans import PlanInputs, Span
from sessiond.domain.samples import LoadSample, Tier

MIB = 1 << 20
MODEL = PrefillCurve(0.03, 0.0006, 3e-8)
TOKENS, CHUNK, STORED = 4096, 128, 96 * MIB
FAST, SLOW = 800 * MIB, 8 * MIB


class Machine:
    """An engine that gets a resume a minute, and what is learned of its disk."""

    def __init__(self) -> None:
        self.now = 1e6
        self.calibration = Calibration()
        self.breaker = Breaker()

    def resume(self, rate: float) -> tuple[int, float, float]:
        """Return the tokens that were loaded, the time that it took, and the better way's."""
        self.now += 60.0
        disk = LoadCurve(Tier.NVME, 0.01, rate)
        known = fit_load(self.calibration.loads, self.now, ASSUMED_LOADS[Tier.NVME])
        nvme, passage = frozenset({Tier.NVME}), self.breaker.passage(self.now)
        found = plan(
            PlanInputs(
                TOKENS,
                CHUNK,
                (Span(Tier.NVME, TOKENS, STORED),),
                replace(ASSUMED, loads={**ASSUMED.loads, Tier.NVME: known}, prefill=MODEL),
                paused=nvme if passage is Passage.PAUSED else frozenset(),
                trials=nvme if passage is Passage.TRIAL else frozenset(),
            )
        )
        better_s = min(MODEL.seconds(0, TOKENS), disk.estimate(STORED).likely_s)
        taken_s = MODEL.seconds(found.load_tokens, TOKENS)
        if found.loads:
            stored_bytes = STORED * found.load_tokens // TOKENS
            load_s = disk.estimate(stored_bytes).likely_s
            self.learn(found.load_tokens, stored_bytes, load_s, is_trial=found.is_trial)
            taken_s += load_s
        return found.load_tokens, taken_s, better_s

    def learn(self, tokens: int, stored_bytes: int, load_s: float, *, is_trial: bool) -> None:
        """Do what a daemon does after a load."""
        sample = LoadSample(self.now, Tier.NVME, stored_bytes, tokens, load_s)
        self.calibration = self.calibration.with_load(sample)
        recompute_s = MODEL.seconds(0, tokens)
        tried = self.breaker.with_trial(self.now)
        self.breaker = tried.with_load(load_s, recompute_s, self.now, self.now)
        if is_trial and load_s < recompute_s:
            self.calibration = self.calibration.without_loads(Tier.NVME, self.now)


def regret(machine: Machine, rate: Callable[[int], float], resumes: int) -> float:
    """Return how much longer all took than the better way each time, as a part."""
    times = [machine.resume(rate(number))[1:] for number in range(resumes)]
    return sum(taken for taken, _ in times) / sum(better for _, better in times) - 1.0


@pytest.mark.parametrize("rate", [FAST, SLOW])
def test_a_disk_that_stays_the_same_costs_little_to_learn(rate: float) -> None:
    machine = Machine()
    machine.resume(rate)  # the first one may be wrong by far
    assert regret(machine, lambda _: rate, 60) < 0.02


def test_a_disk_that_was_slow_from_the_start_is_found_to_have_recovered() -> None:
    machine = Machine()
    regret(machine, lambda _: SLOW, 30)
    loaded = [machine.resume(FAST)[0] for _ in range(30)]
    assert loaded[0] == 0
    assert loaded[-5:] == [TOKENS] * 5


def test_a_hiccup_of_a_fast_disk_is_noticed_and_its_end_too() -> None:
    machine = Machine()
    regret(machine, lambda _: FAST, 20)
    during = [machine.resume(SLOW)[0] for _ in range(20)]
    assert during.count(TOKENS) <= 3
    assert machine.breaker.pause_s > 0.0  # it is open
    after = [machine.resume(FAST)[0] for _ in range(40)]
    assert after[-5:] == [TOKENS] * 5
    assert machine.breaker.state is BreakerState.CLOSED
