from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessiond.domain.breaker import Breaker, BreakerLimits, BreakerState, Passage
from sessiond.domain.canonical import canonical_json

LIMITS = BreakerLimits(loads=5, first_pause_s=10.0, longest_pause_s=60.0, trial_s=30.0)
SLOW, FAST = (2.0, 1.0), (0.5, 1.0)  #: seconds of a load, and of computing


def after(*loads: tuple[float, float], start: float = 0.0) -> Breaker:
    """Return a breaker after loads that ended one a second."""
    breaker = Breaker(LIMITS)
    for number, load in enumerate(loads, 1):
        breaker = breaker.with_load(*load, start + number - 0.5, start + number)
    return breaker


@pytest.mark.parametrize(
    ("loads", "state"),
    [
        ([], BreakerState.CLOSED),
        ([SLOW] * 4, BreakerState.CLOSED),
        ([SLOW] * 5, BreakerState.OPEN),
        ([SLOW, FAST, SLOW, FAST, SLOW], BreakerState.OPEN),
        ([SLOW, FAST, FAST, FAST, SLOW], BreakerState.CLOSED),
        ([(1000.0, 1.0), FAST, FAST, (1000.0, 1.0), FAST], BreakerState.CLOSED),  # hiccups
        ([FAST] * 20 + [SLOW] * 2, BreakerState.CLOSED),
        ([FAST] * 20 + [SLOW] * 3, BreakerState.OPEN),
        ([(1.0, 1.0)] * 9, BreakerState.CLOSED),
    ],
)
def test_it_opens_when_most_of_the_newest_loads_do_not_pay(
    loads: list[tuple[float, float]], state: BreakerState
) -> None:
    assert after(*loads).state is state


def test_open_it_lets_one_try_after_a_pause() -> None:
    breaker = after(*[SLOW] * 5)  # opened at 5
    assert breaker.passage(14.9) is Passage.PAUSED
    assert breaker.passage(15.0) is Passage.TRIAL
    assert breaker.with_trial(14.9) == breaker
    trying = breaker.with_trial(15.0)
    assert (trying.state, trying.passage(16.0)) == (BreakerState.HALF_OPEN, Passage.PAUSED)


def test_the_trial_decides() -> None:
    trying = after(*[SLOW] * 5).with_trial(15.0)
    closed = trying.with_load(*FAST, 15.0, 16.0)
    assert (closed.state, closed.ratios, closed.pause_s) == (BreakerState.CLOSED, (), 0.0)
    assert closed.passage(16.0) is Passage.ALLOWED
    again = trying.with_load(*SLOW, 15.0, 17.0)
    assert (again.state, again.since_unix_s, again.pause_s) == (BreakerState.OPEN, 17.0, 20.0)


def test_pauses_double_up_to_the_longest() -> None:
    breaker, now, pauses = after(*[SLOW] * 5), 5.0, []
    for _ in range(5):
        pauses.append(breaker.pause_s)
        now += breaker.pause_s
        breaker = breaker.with_trial(now).with_load(*SLOW, now, now)
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_what_began_earlier_says_nothing_of_now() -> None:
    opened = after(*[SLOW] * 5)
    assert opened.with_load(*FAST, 4.0, 6.0) == opened
    assert opened.with_load(*FAST, 5.5, 6.0) == opened  # only a trial decides
    trying = opened.with_trial(15.0)
    assert trying.with_load(*FAST, 14.0, 16.0) == trying
    closed = trying.with_load(*FAST, 15.0, 16.0)
    assert closed.with_load(*SLOW, 12.0, 17.0) == closed


def test_a_trial_that_is_not_heard_of_is_given_up() -> None:
    trying = after(*[SLOW] * 5).with_trial(15.0)
    assert trying.passage(44.9) is Passage.PAUSED
    assert trying.passage(45.0) is Passage.TRIAL
    assert trying.with_trial(45.0).since_unix_s == 45.0


def test_a_clock_that_is_set_back_does_not_keep_it_open() -> None:
    late = after(*[SLOW] * 5, start=1e9)
    assert late.passage(1000.0) is Passage.TRIAL


def test_json() -> None:
    shown = json.loads(canonical_json(after(SLOW, FAST).as_json()))
    assert shown == {"state": "closed", "since_unix_s": 0.0, "pause_s": 0.0, "ratios": [0.5, 2.0]}


class BreakerMachine(RuleBasedStateMachine):
    """A breaker and the loads that it lets pass, some of which never report."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(LIMITS)
        self.now = 0.0
        self.running: list[float] = []

    @rule(seconds=st.floats(0.1, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        passage = self.breaker.passage(self.now)
        if passage is Passage.PAUSED:
            return
        if passage is Passage.TRIAL:
            self.breaker = self.breaker.with_trial(self.now)
            assert self.breaker.passage(self.now) is Passage.PAUSED
        self.running.append(self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), load=st.sampled_from([SLOW, FAST]), tells=st.booleans())
    def end(self, data: st.DataObject, load: tuple[float, float], *, tells: bool) -> None:
        began = data.draw(st.sampled_from(self.running))
        self.running.remove(began)
        before = self.breaker
        if tells:
            self.breaker = before.with_load(*load, began, self.now)
        if before.state is not BreakerState.CLOSED and self.breaker.state is BreakerState.CLOSED:
            assert load == FAST
            assert began >= before.since_unix_s

    @invariant()
    def holds(self) -> None:
        state, pause_s = self.breaker.state, self.breaker.pause_s
        assert (pause_s > 0.0) is (state is not BreakerState.CLOSED)
        assert pause_s <= LIMITS.longest_pause_s
        assert len(self.breaker.ratios) <= LIMITS.loads
        # Whatever happened, some load may try before long.
        assert self.breaker.passage(self.now + LIMITS.longest_pause_s) is not Passage.PAUSED


BreakerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20)
TestBreakerMachine = BreakerMachine.TestCase
