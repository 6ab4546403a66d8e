"""An engine whose fingerprint is still being taken: it serves, and the tier is idle."""

from __future__ import annotations

import pytest

from sessiond.connector.attest import RESET, TierState
from sessiond.connector.awaited import StartMover
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS, RETRY_S
from sessiond.connector.questions import START_DEADLINE_S
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing.fake_mover import FakeClock, FakeMover, FakeMovers
from sessiond.testing.fake_scheduler import FakeScheduler, tokens_of

PENDING = Cause(Reason.IDENTITY_PENDING, "16.0 GB are read once")
UNKNOWN = Cause(Reason.IDENTITY_UNKNOWN, "model.safetensors was changed")
HEAD = tokens_of(3)


class FakeAwaited:
    """A fingerprint that is known when the test says so."""

    def __init__(self) -> None:
        self.outcome: StartMover | Cause | None = None
        self.waited_s = 0.0

    @property
    def pending(self) -> Cause:
        return PENDING

    def look(self) -> StartMover | Cause | None:
        return self.outcome

    def wait(self, timeout_s: float) -> None:
        self.waited_s += timeout_s


@pytest.fixture
def awaited() -> FakeAwaited:
    return FakeAwaited()


@pytest.fixture
def vllm(clock: FakeClock, movers: FakeMovers, awaited: FakeAwaited) -> FakeScheduler:
    return FakeScheduler(clock, movers, start_mover=awaited)


@pytest.fixture
def told(vllm: FakeScheduler) -> list[TierState]:
    """What everybody was told of the tier."""
    told: list[TierState] = []
    vllm.coordinator.tier.on_change = told.append
    return told


def reasons(answer: dict[str, list[dict[str, str]]]) -> list[str]:
    return [cause["reason"] for cause in answer["causes"]]


def test_a_turn_is_served_and_told_why_nothing_is_loaded(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), HEAD)
    assert vllm.may_match(request)
    assert vllm.match(request)
    answer = vllm.finish(request)
    assert (answer["ok"], reasons(answer)) == (True, ["identity_pending"])


def test_a_suspend_stores_nothing_and_says_so(vllm: FakeScheduler, movers: FakeMovers) -> None:
    vllm.take_turn(HEAD)
    suspend = vllm.begin_suspend(HEAD, chunks=3)
    assert not vllm.may_match(suspend)
    commit = vllm.commit()
    assert vllm.may_match(commit)
    answer = vllm.finish(commit)
    assert (answer["committed"], reasons(answer)) == (False, ["identity_pending"])
    assert not movers.all


def test_a_resume_loads_nothing_and_says_so(vllm: FakeScheduler) -> None:
    resume = vllm.arrive(vllm.ticket(TicketOp.RESUME, generation=1), HEAD)
    assert vllm.may_match(resume)
    assert not vllm.match(resume)  # nothing is computed for it
    answer = vllm.finish(vllm.outcome())
    assert (answer["loadable_tokens"], reasons(answer)) == (0, ["identity_pending"])


def test_the_engine_keeps_stepping_and_rests_until_it_is_known(
    vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers
) -> None:
    assert vllm.coordinator.has_work()
    vllm.coordinator.rest()
    assert awaited.waited_s > 0
    awaited.outcome = movers.start
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert len(movers.all) == 1
    assert not vllm.coordinator.has_work()


def test_what_was_said_meanwhile_is_published_when_it_is_known(
    vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers, told: list[TierState]
) -> None:
    vllm.take_turn(HEAD)
    awaited.outcome = movers.start
    assert vllm.done() == []
    assert vllm.published().branches[0]["tokens"] == len(HEAD)
    assert told == [TierState(off="", reason="", attestable=False, resets=0)]


def test_the_tier_is_on_when_what_was_said_meanwhile_has_become_files(
    vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers, told: list[TierState]
) -> None:
    vllm.take_turn(HEAD)
    mover = movers.start()  # it takes a moment to begin its work
    mover.writes_heads = False
    awaited.outcome = lambda: mover
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert told == []
    assert vllm.coordinator.has_work()
    (head,) = mover.told(protocol.WriteHead)
    mover.answer(protocol.HeadWritten(head.head_id))
    vllm.coordinator.poll()
    assert [state.off for state in told] == [""]
    assert not vllm.coordinator.has_work()


def test_the_tier_is_on_when_the_mover_has_begun_to_work(
    vllm: FakeScheduler, awaited: FakeAwaited, told: list[TierState]
) -> None:
    mover = FakeMover(begins_at_once=False)  # a process that is being started, for seconds
    awaited.outcome = lambda: mover
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert told == []
    assert vllm.coordinator.has_work()  # it is asked on: nobody else would tell
    mover.answer(protocol.Ready())
    vllm.coordinator.poll()
    assert [state.off for state in told] == [""]
    assert not vllm.coordinator.has_work()


def test_a_mover_that_never_begins_is_replaced(
    clock: FakeClock, vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers
) -> None:
    started = [FakeMover(begins_at_once=False), movers.start()]
    awaited.outcome = lambda: started.pop(0)
    first = started[0]
    vllm.coordinator.poll()
    clock.now_s += START_DEADLINE_S + 1
    vllm.coordinator.poll()
    assert first.killed
    assert not started


def test_the_tier_is_not_told_to_be_on_while_its_mover_is_dying(
    clock: FakeClock, vllm: FakeScheduler, awaited: FakeAwaited, told: list[TierState]
) -> None:
    first = FakeMover(begins_at_once=False, dies_at_once=False)
    started = [first, FakeMover()]
    awaited.outcome = lambda: started.pop(0)
    vllm.coordinator.poll()
    clock.now_s += START_DEADLINE_S + 1
    vllm.coordinator.poll()
    assert (first.killed, told) == (True, [])
    first.gone = True
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert not started
    assert [state.off for state in told] == [""]


def test_the_tier_is_not_told_to_be_on_while_no_mover_can_be_started(
    clock: FakeClock,
    vllm: FakeScheduler,
    awaited: FakeAwaited,
    movers: FakeMovers,
    told: list[TierState],
) -> None:
    movers.refuses = True
    awaited.outcome = movers.start
    vllm.coordinator.poll()
    assert told == []
    movers.refuses = False
    clock.sleep(RETRY_S)
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert [state.off for state in told] == [""]


def test_what_is_asked_while_a_mover_begins_is_not_late(
    clock: FakeClock, vllm: FakeScheduler, awaited: FakeAwaited
) -> None:
    mover = FakeMover(begins_at_once=False)
    mover.writes_heads = False
    awaited.outcome = lambda: mover
    job_s = vllm.coordinator.limits.job_deadline_s
    vllm.coordinator.poll()
    vllm.take_turn(HEAD)
    clock.now_s += job_s + 1
    vllm.coordinator.poll()
    assert not mover.killed
    mover.answer(protocol.Ready())
    vllm.coordinator.poll()
    clock.now_s += job_s - 1  # its time begins now
    vllm.coordinator.poll()
    assert not mover.killed
    clock.now_s += 2
    vllm.coordinator.poll()
    assert mover.killed


def test_then_turns_load_without_a_restart(
    vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers
) -> None:
    awaited.outcome = movers.start
    request = vllm.arrive(vllm.ticket(generation=1), HEAD)
    assert not vllm.may_match(request)
    (opened,) = vllm.mover.told(protocol.OpenLoad)
    assert opened.generation == 1


def test_what_cannot_be_known_turns_the_tier_off_for_good(
    vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers, told: list[TierState]
) -> None:
    awaited.outcome = UNKNOWN
    answer = vllm.take_turn(HEAD, generation=1)
    assert (answer["ok"], reasons(answer)) == (True, ["identity_unknown"])
    assert told[-1] == TierState(UNKNOWN.detail, "identity_unknown", attestable=False, resets=0)
    assert not movers.all
    assert not vllm.coordinator.has_work()


@pytest.mark.parametrize("known", [True, False])
def test_a_reset_meanwhile_is_not_forgotten(
    vllm: FakeScheduler,
    awaited: FakeAwaited,
    movers: FakeMovers,
    told: list[TierState],
    known: bool,  # noqa: FBT001 - a parameter
) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    assert told[-1].reason == "tier_off"
    awaited.outcome = movers.start if known else UNKNOWN
    vllm.coordinator.poll()
    # Without a fingerprint, no attestation may bring it back.
    assert vllm.coordinator.tier.off == (RESET if known else UNKNOWN)
    assert told[-1].attestable == known


def test_a_mover_that_cannot_be_started_is_tried_again(
    clock: FakeClock, vllm: FakeScheduler, awaited: FakeAwaited, movers: FakeMovers
) -> None:
    movers.refuses = True
    awaited.outcome = movers.start
    vllm.coordinator.poll()
    assert vllm.coordinator.has_work()
    movers.refuses = False
    clock.sleep(RETRY_S)
    vllm.coordinator.poll()
    vllm.coordinator.poll()
    assert len(movers.all) == 1


def test_one_that_can_never_be_started_turns_the_tier_off(
    clock: FakeClock,
    vllm: FakeScheduler,
    awaited: FakeAwaited,
    movers: FakeMovers,
    told: list[TierState],
) -> None:
    movers.refuses = True
    awaited.outcome = movers.start
    for _ in range(MAX_DEATHS):
        vllm.coordinator.poll()
        clock.sleep(RETRY_S)
    assert told[-1].reason == "mover_failed"
    assert not vllm.coordinator.has_work()


def test_heads_asked_for_under_traffic_do_not_keep_the_tier_from_being_told_on(
    vllm: FakeScheduler, awaited: FakeAwaited, told: list[TierState]
) -> None:
    vllm.take_turn(HEAD)
    mover = FakeMover()
    mover.writes_heads = False
    awaited.outcome = lambda: mover
    vllm.coordinator.poll()
    (before,) = mover.told(protocol.WriteHead)
    vllm.take_turn(HEAD, session="s-2")
    mover.answer(protocol.HeadWritten(before.head_id))
    vllm.coordinator.poll()
    assert [state.off for state in told] == [""]


def test_an_engine_may_end_meanwhile(vllm: FakeScheduler) -> None:
    vllm.coordinator.drain()
    vllm.coordinator.end_jobs()
    vllm.coordinator.close()
    assert vllm.coordinator.take_done() == []
