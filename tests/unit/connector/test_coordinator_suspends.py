from __future__ import annotations

from typing import Any

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import JobDone
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.domain.tokens import TokenIds, from_bytes, head_digest
from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import LIMITS, RAM_CHUNKS, FakeScheduler, tokens_of

HEAD = tokens_of(3, extra=2)


def reasons(answer: dict[str, Any]) -> list[str]:
    return [cause["reason"] for cause in answer["causes"]]


def suspend(vllm: FakeScheduler, head: TokenIds[int] = HEAD, chunks: int = 3) -> str:
    """Take a turn that leaves *head*, then let a suspend of it arrive."""
    vllm.take_turn(head)
    return vllm.begin_suspend(head, chunks)


def begun(vllm: FakeScheduler, durable_chunks: int = 0) -> str:
    """Return a suspend that vLLM has scheduled."""
    request = suspend(vllm)
    vllm.mover.open_suspend(durable_chunks)
    assert vllm.may_match(request)
    assert vllm.match(request, 12, 0)
    return request


def settled(vllm: FakeScheduler) -> dict[str, Any]:
    """Return the answer to the commit request."""
    commit = vllm.commit()
    assert vllm.may_match(commit)
    return vllm.finish(commit)


# All goes well


def test_the_mover_is_asked_with_all_of_the_heads_tokens(vllm: FakeScheduler) -> None:
    suspend(vllm, chunks=2)
    (asked,) = vllm.mover.told(protocol.OpenSuspend)
    assert (asked.tenant, asked.session, asked.generation) == ("acme", "s-1", 1)
    assert from_bytes(asked.payload) == HEAD


def test_a_suspend_waits_for_its_plan(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    assert not vllm.may_match(request)
    vllm.mover.open_suspend()
    assert vllm.may_match(request)


def test_a_suspend_is_told_from_other_requests(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    turn = vllm.arrive(vllm.ticket(), tokens_of(1))
    assert vllm.coordinator.is_suspend(request)
    assert not vllm.coordinator.is_suspend(turn)
    assert not vllm.coordinator.is_suspend("unknown")


def test_all_whole_chunks_are_worth_storing(vllm: FakeScheduler) -> None:
    assert vllm.storable(begun(vllm), range(5)) == [0, 1, 2]


@pytest.mark.parametrize("there_tokens", [0, 4, 12])
def test_a_suspend_that_may_computes_what_is_gone(vllm: FakeScheduler, there_tokens: int) -> None:
    vllm.take_turn(HEAD)
    request, commit = vllm.begin_suspend(HEAD, 3, recomputes=1), vllm.commit()
    vllm.mover.open_suspend()
    assert vllm.may_match(request)
    assert vllm.match(request, there_tokens)
    assert vllm.storable(request, range(3)) == [0, 1, 2]
    vllm.store(5, request, range(3))
    assert vllm.finish(request)["causes"] == []
    vllm.mover.finish_suspend()
    assert vllm.may_match(commit)
    answer = vllm.finish(commit)
    told = answer["committed"], answer["available_tokens"], answer["recomputed_tokens"]
    assert told == (True, 12, 12 - there_tokens)


def test_preempted_it_may_lack_more(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    request, commit = vllm.begin_suspend(HEAD, 3, recomputes=1), vllm.commit()
    vllm.mover.open_suspend()
    for there_tokens in (8, 4, 12):
        assert vllm.may_match(request)
        assert vllm.match(request, there_tokens)
    vllm.finish(request)
    vllm.mover.finish_suspend()
    assert vllm.may_match(commit)
    assert vllm.finish(commit)["recomputed_tokens"] == 8


def test_durable_chunks_are_not_stored_again(vllm: FakeScheduler) -> None:
    assert vllm.storable(begun(vllm, durable_chunks=2), range(3)) == [2]


def test_no_more_is_handed_over_than_the_ram_tier_holds(vllm: FakeScheduler) -> None:
    request = suspend(vllm, tokens_of(RAM_CHUNKS + 5), RAM_CHUNKS + 5)
    vllm.mover.open_suspend(2)
    assert vllm.may_match(request)
    assert vllm.storable(request, range(20)) == list(range(2, 2 + RAM_CHUNKS))


def test_a_store_is_passed_to_the_mover(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.store(5, request, [1, 0])
    (asked,) = vllm.mover.told(protocol.Store)
    assert (asked.job_id, asked.items) == (5, [[0, 0], [1, 1]])


def test_the_chunk_of_the_sampled_token_is_not_stored(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.store(5, request, [2, 3])
    (asked,) = vllm.mover.told(protocol.Store)
    assert asked.items == [[2, 2]]


def test_a_stores_end_is_reported_once(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.store(5, request, [0, 1])
    vllm.mover.end_store()
    assert vllm.done() == [JobDone(5, frozenset({0, 1}), all_good=True)]
    assert vllm.done() == []


def test_the_end_of_the_request_commits(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.store(5, request, range(3))
    answer = vllm.finish(request)
    assert (answer["op"], answer["ok"], answer["causes"]) == ("suspend", True, [])
    (asked,) = vllm.mover.told(protocol.FinishSuspend)
    assert asked.commit


def test_a_commit_waits_until_it_is_durable(vllm: FakeScheduler) -> None:
    request, commit = begun(vllm), vllm.commit()
    vllm.finish(request)
    assert not vllm.may_match(commit)
    vllm.mover.finish_suspend()
    assert vllm.may_match(commit)
    answer = vllm.finish(commit)
    assert (answer["committed"], answer["generation"], answer["available_tokens"]) == (True, 7, 12)


def test_a_commit_may_come_before_its_suspend(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    commit = vllm.commit()
    assert not vllm.may_match(commit)
    request = vllm.begin_suspend(HEAD, 3)
    vllm.mover.open_suspend()
    vllm.may_match(request)
    vllm.match(request, 12, 0)
    vllm.finish(request)
    vllm.mover.finish_suspend()
    assert vllm.may_match(commit)
    assert vllm.finish(commit)["committed"]


def test_the_engine_keeps_stepping_until_it_is_durable(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.finish(request)
    assert vllm.coordinator.has_work()
    vllm.mover.finish_suspend()
    vllm.coordinator.poll()
    assert not vllm.coordinator.has_work()


def test_another_operations_commit_is_not_settled(vllm: FakeScheduler) -> None:
    vllm.finish(begun(vllm))
    vllm.mover.finish_suspend()
    vllm.coordinator.poll()
    assert not vllm.may_match(vllm.commit(operation_id="op-2"))


def test_a_suspend_leaves_no_head(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    before = vllm.published()
    vllm.finish(request)
    assert vllm.published() == before


# Refused at the door


def test_a_turn_in_flight_refuses_a_suspend(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    vllm.arrive(vllm.ticket(), HEAD)
    request = vllm.begin_suspend(HEAD, 3)
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["turn_in_flight"])
    assert not vllm.may_match(request)
    assert not vllm.coordinator.is_suspend(request)


def test_a_turn_in_flight_beside_a_resume_refuses_a_suspend(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    vllm.arrive(vllm.ticket(), HEAD)
    resume = vllm.arrive(vllm.ticket(TicketOp.RESUME, operation_id="op-9"), tokens_of(2))
    vllm.match(resume, 8, 0)
    vllm.finish(resume)
    vllm.begin_suspend(HEAD, 3)
    assert reasons(settled(vllm)) == ["turn_in_flight"]


@pytest.mark.parametrize(
    "fields",
    [
        {"head_tokens": len(HEAD) - 1},
        {"head_digest": head_digest(tokens_of(3, first=5))},
        {"head_digest": "", "head_tokens": 0},
        {"session": "s-2"},
        {"tenant": "other"},
    ],
    ids=str,
)
def test_a_stale_head_refuses_a_suspend(vllm: FakeScheduler, fields: dict[str, Any]) -> None:
    vllm.take_turn(HEAD)
    vllm.begin_suspend(HEAD, 3, **fields)
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["head_stale"])
    assert vllm.mover.told(protocol.OpenSuspend) == []


def test_a_head_that_grew_refuses_a_suspend(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    vllm.take_turn(tokens_of(4))
    vllm.begin_suspend(HEAD, 3)
    assert reasons(settled(vllm)) == ["head_stale"]


def test_a_prompt_that_is_not_the_heads_begin_refuses_a_suspend(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    ticket = vllm.ticket(
        TicketOp.SUSPEND, generation=1, head_tokens=len(HEAD), head_digest=head_digest(HEAD)
    )
    vllm.arrive(ticket, tokens_of(3, first=1))
    assert reasons(settled(vllm)) == ["head_stale"]


def test_an_unknown_session_refuses_a_suspend(vllm: FakeScheduler) -> None:
    vllm.begin_suspend(HEAD, 3)
    assert reasons(settled(vllm)) == ["head_stale"]


def test_a_side_branch_can_be_suspended(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    vllm.take_turn(tokens_of(9, first=500))
    vllm.begin_suspend(HEAD, 3)
    assert len(vllm.mover.told(protocol.OpenSuspend)) == 1


# Evicted KV


def test_evicted_kv_holds_the_request_and_tells_what_is_there(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    vllm.mover.open_suspend()
    vllm.may_match(request)
    assert not vllm.match(request, 4, 4)
    assert not vllm.may_match(request)
    answer = settled(vllm)
    assert (answer["committed"], answer["available_tokens"]) == (False, 8)
    assert reasons(answer) == ["kv_evicted"]


def test_nothing_of_a_held_suspend_is_stored(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    vllm.mover.open_suspend()
    vllm.may_match(request)
    vllm.match(request, 4, 4)
    assert vllm.storable(request, range(3)) == []
    vllm.abort(request)
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]


def test_a_held_suspend_that_nobody_cancels_is_served_but_not_committed(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = suspend(vllm)
    vllm.mover.open_suspend()
    vllm.may_match(request)
    vllm.match(request, 4, 4)
    clock.sleep(LIMITS.hold_deadline_s + 1)
    assert vllm.may_match(request)
    assert vllm.match(request, 4, 4)
    vllm.finish(request)
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]


def test_a_refused_suspend_that_nobody_cancels_is_served(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = vllm.begin_suspend(HEAD, 3)
    assert not vllm.may_match(request)
    clock.sleep(LIMITS.hold_deadline_s + 1)
    assert vllm.may_match(request)
    assert vllm.match(request, 12, 0)


def test_a_suspend_preempted_and_evicted_is_held(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    assert not vllm.match(request, 0, 4)
    assert reasons(settled(vllm)) == ["kv_evicted"]


# It does not end well


def test_an_aborted_suspend_is_not_committed(vllm: FakeScheduler) -> None:
    vllm.abort(begun(vllm))
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["aborted"])


def test_one_that_was_never_opened_is_not_waited_for(vllm: FakeScheduler) -> None:
    # Its mover may take minutes to begin its work, and can have nothing to commit.
    vllm.abort(suspend(vllm))
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]
    vllm.coordinator.drain()  # would never end: this mover answers nothing
    vllm.mover.open_suspend()
    vllm.mover.finish_suspend(committed=False)
    assert reasons(settled(vllm)) == ["aborted"]


def test_a_suspend_whose_end_is_not_told_is_not_committed(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.coordinator.submits_over(request)
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]


def test_what_the_mover_could_not_commit_is_told(vllm: FakeScheduler) -> None:
    vllm.finish(begun(vllm))
    vllm.mover.finish_suspend(Cause(Reason.STORE_FULL), committed=False)
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["store_full"])


def test_a_store_that_failed_is_reported_with_its_slots(vllm: FakeScheduler) -> None:
    vllm.store(5, begun(vllm), [0, 1])
    vllm.mover.end_store(Cause(Reason.STORE_FULL))
    assert vllm.done() == [JobDone(5, frozenset(), all_good=False)]


def test_a_suspend_that_cannot_be_opened_is_refused(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    vllm.mover.open_suspend(0, Cause(Reason.STORE_FAILED))
    assert not vllm.may_match(request)
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["store_failed"])


def test_jobs_of_a_suspend_that_is_not_open_end_at_once(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    vllm.store(5, request, [0])
    assert vllm.done() == [JobDone(5, frozenset(), all_good=False)]
    assert vllm.mover.told(protocol.Store) == []


def test_a_late_mover_refuses_the_suspend(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = suspend(vllm)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    assert not vllm.may_match(request)
    assert reasons(settled(vllm)) == ["deadline"]


def test_a_commit_without_its_suspend_is_answered_in_the_end(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    commit = vllm.commit()
    clock.sleep(LIMITS.hold_deadline_s - 1)
    assert not vllm.may_match(commit)
    clock.sleep(2)
    assert vllm.may_match(commit)
    assert vllm.match(commit)
    answer = vllm.finish(commit)
    assert (answer["ok"], answer["committed"], reasons(answer)) == (False, False, ["deadline"])


# The mover dies or hangs


def test_death_while_opening_refuses_the_suspend(vllm: FakeScheduler) -> None:
    request = suspend(vllm)
    vllm.mover.die()
    assert not vllm.may_match(request)
    assert reasons(settled(vllm)) == ["mover_failed"]


def test_death_while_storing_ends_the_jobs_and_the_suspend(vllm: FakeScheduler) -> None:
    request = begun(vllm)
    vllm.store(5, request, [0, 1])
    vllm.mover.die()
    assert vllm.done() == [JobDone(5, frozenset(), all_good=False)]
    vllm.finish(request)
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["mover_failed"])


def test_a_suspend_begun_with_a_dead_mover_is_not_committed_by_the_next(
    vllm: FakeScheduler,
) -> None:
    request = begun(vllm)
    vllm.mover.die()
    vllm.coordinator.poll()
    vllm.store(6, request, [2])
    vllm.finish(request)
    assert len(vllm.movers.all) == 2
    assert vllm.mover.told(protocol.Store) == []
    assert vllm.mover.told(protocol.FinishSuspend) == []
    assert vllm.done() == [JobDone(6, frozenset(), all_good=False)]


def test_death_while_committing_settles_as_failed(vllm: FakeScheduler) -> None:
    vllm.finish(begun(vllm))
    vllm.mover.die()
    vllm.coordinator.poll()
    assert reasons(settled(vllm)) == ["mover_failed"]


def test_a_commit_answered_before_death_counts(vllm: FakeScheduler) -> None:
    vllm.finish(begun(vllm))
    vllm.mover.finish_suspend()
    vllm.mover.die()
    vllm.coordinator.poll()
    assert settled(vllm)["committed"]


def test_a_mover_that_hangs_while_committing_is_replaced(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    vllm.finish(begun(vllm))
    clock.sleep(LIMITS.job_deadline_s + 1)
    vllm.coordinator.poll()
    assert vllm.movers.all[0].killed
    vllm.coordinator.poll()  # the heads were written
    assert not vllm.coordinator.has_work()
    assert reasons(settled(vllm)) == ["mover_failed"]


def test_while_a_mover_dies_suspends_are_refused(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock, FakeMovers(die_at_once=False))
    vllm.mover.die()
    vllm.begin_suspend(HEAD, 3)
    assert reasons(settled(vllm)) == ["mover_failed"]


# The tier goes off


def test_off_means_that_suspends_are_refused(vllm: FakeScheduler) -> None:
    vllm.take_turn(HEAD)
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))
    vllm.begin_suspend(HEAD, 3)
    assert reasons(settled(vllm)) == ["tier_off"]


@pytest.mark.parametrize("phase", ["opening", "opened", "storing", "stored"])
def test_switched_off_in_any_phase_nothing_is_committed(vllm: FakeScheduler, phase: str) -> None:
    request = suspend(vllm)
    if phase != "opening":
        vllm.mover.open_suspend()
        vllm.may_match(request)
        vllm.match(request, 12, 0)
    if phase in ("storing", "stored"):
        vllm.store(5, request, range(3))
    if phase == "stored":
        vllm.mover.end_store()
        vllm.done()
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))
    vllm.finish(request)
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]
    answer = settled(vllm)
    assert (answer["committed"], reasons(answer)) == (False, ["tier_off"])
