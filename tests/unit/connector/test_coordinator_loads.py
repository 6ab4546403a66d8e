from __future__ import annotations

from typing import Any

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import JobDone
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.domain.tokens import from_bytes
from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import (
    CHUNK_TOKENS,
    LIMITS,
    RAM_CHUNKS,
    FakeScheduler,
    tokens_of,
)


def reasons(answer: dict[str, Any]) -> list[str]:
    return [cause["reason"] for cause in answer["causes"]]


def arrive(
    vllm: FakeScheduler,
    chunks: int = 3,
    op: TicketOp = TicketOp.TURN,
    **fields: Any,  # noqa: ANN401
) -> str:
    return vllm.arrive(vllm.ticket(op, **{"generation": 1, **fields}), tokens_of(chunks))


def admit(vllm: FakeScheduler, request: str, chunks: int = 3, vram_tokens: int = 0) -> None:
    vllm.mover.open_load(chunks)
    assert vllm.may_match(request, vram_tokens)


def load_all(vllm: FakeScheduler, request: str, chunks: int = 3, job_id: int = 1) -> None:
    vllm.load(job_id, request, range(chunks))
    vllm.mover.end_load()
    assert vllm.done()[-1].all_good


# A turn


def test_the_mover_is_asked_for_what_the_ticket_names(vllm: FakeScheduler) -> None:
    arrive(vllm, generation=4)
    (asked,) = vllm.mover.told(protocol.OpenLoad)
    assert (asked.tenant, asked.session, asked.generation) == ("acme", "s-1", 4)
    assert from_bytes(asked.payload) == tokens_of(3)


def test_generation_zero_forbids_loading(vllm: FakeScheduler) -> None:
    request = arrive(vllm, generation=0)
    assert vllm.may_match(request)
    assert vllm.mover.told(protocol.OpenLoad) == []


@pytest.mark.parametrize("op", [TicketOp.COMMIT, TicketOp.OUTCOME])
def test_requests_that_wait_load_nothing(vllm: FakeScheduler, op: TicketOp) -> None:
    arrive(vllm, op=op)
    assert vllm.mover.told(protocol.OpenLoad) == []


def test_a_request_waits_for_its_plan(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    assert not vllm.may_match(request)
    assert vllm.coordinator.has_work()


def test_an_opened_plan_offers_its_chunks(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    assert vllm.offered(request, range(5)) == [0, 1, 2]


def test_nothing_is_offered_before(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    assert vllm.offered(request, range(3)) == []


def test_a_key_without_position_is_not_offered(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    assert not vllm.coordinator.offers(request, -1)


def test_the_last_prompt_token_is_always_computed(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3, extra=0))
    admit(vllm, request)
    assert vllm.offered(request, range(3)) == [0, 1]


def test_a_load_is_passed_to_the_mover(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(5, request, [0, 1])
    (asked,) = vllm.mover.told(protocol.Load)
    assert (asked.job_id, asked.items) == (5, [[0, 0], [1, 1]])


def test_while_a_load_runs_nothing_is_scanned(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(5, request, [0, 1, 2])
    assert not vllm.may_match(request)


def test_a_loads_end_is_reported_once(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(5, request, [0, 1, 2])
    vllm.mover.end_load()
    assert vllm.done() == [
        JobDone(5, frozenset({0, 1, 2}), all_good=True, seconds=0.5, moved_bytes=700)
    ]
    assert vllm.done() == []


def test_a_turn_from_disk(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    load_all(vllm, request)
    assert vllm.match(request, 0, 12)
    vllm.coordinator.in_vram(request)
    answer = vllm.finish(request)
    assert answer["split"] == {
        "prompt_tokens": 13, "vram_tokens": 0, "ram_tokens": 0, "disk_tokens": 12,
    }  # fmt: skip
    assert (answer["generation"], answer["causes"]) == (1, [])


def test_what_was_in_ram_already_is_told_from_disk(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, [2])
    vllm.mover.end_load()
    vllm.done()
    vllm.match(request, 4, 8)
    split = vllm.finish(request)["split"]
    assert (split["vram_tokens"], split["ram_tokens"], split["disk_tokens"]) == (4, 4, 4)


def test_vram_may_end_inside_a_chunk(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request, vram_tokens=6)
    load_all(vllm, request)
    vllm.match(request, 6, 6)
    split = vllm.finish(request)["split"]
    assert (split["vram_tokens"], split["ram_tokens"], split["disk_tokens"]) == (6, 0, 6)


def test_the_plan_is_closed_when_the_request_is_over(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.finish(request)
    (opened,) = vllm.mover.told(protocol.OpenLoad)
    assert vllm.mover.told(protocol.ClosePlan) == [protocol.ClosePlan(opened.plan_id)]
    vllm.coordinator.poll()  # the heads were written
    assert not vllm.coordinator.has_work()


def test_promoted_chunks_are_kept_while_the_request_lives(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    kept = vllm.coordinator.keeps_promoted
    assert kept(request)
    vllm.finish(request)
    assert not kept(request)


def test_chunks_of_a_turn_without_a_load_are_not_kept(vllm: FakeScheduler) -> None:
    assert not vllm.coordinator.keeps_promoted(arrive(vllm, generation=0))
    assert not vllm.coordinator.keeps_promoted(arrive(vllm, may_load=0))


# Less than asked for


def test_the_movers_causes_are_told(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    vllm.mover.open_load(0, Cause(Reason.WEIGHTS_MISMATCH, "weights_digest", "a", "b"))
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == []
    vllm.match(request)
    assert reasons(vllm.finish(request)) == ["weights_mismatch"]


def test_a_failed_chunk_is_a_miss_for_ever(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, range(3))
    vllm.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset({1}))
    assert vllm.done() == [
        JobDone(1, frozenset({0, 2}), all_good=False, seconds=0.5, moved_bytes=700)
    ]
    assert vllm.offered(request, range(3)) == [0, 2]
    vllm.match(request, 0, 4)
    assert reasons(vllm.finish(request)) == ["snapshot_corrupt"]


def test_the_same_cause_of_several_jobs_is_told_once(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    for chunk in range(3):
        vllm.load(chunk, request, [chunk])
        vllm.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset({chunk}))
        vllm.done()
    assert reasons(vllm.finish(request)) == ["snapshot_corrupt"]


def test_more_than_the_ram_tier_holds_is_offered_in_part(vllm: FakeScheduler) -> None:
    request = arrive(vllm, chunks=RAM_CHUNKS + 3)
    admit(vllm, request, chunks=RAM_CHUNKS + 3)
    assert vllm.offered(request, range(20)) == list(range(RAM_CHUNKS))
    assert reasons(vllm.finish(request)) == ["ram_tier_too_small"]


def test_what_vram_has_needs_no_room(vllm: FakeScheduler) -> None:
    request = arrive(vllm, chunks=RAM_CHUNKS + 3)
    admit(vllm, request, chunks=RAM_CHUNKS + 3, vram_tokens=3 * CHUNK_TOKENS)
    assert vllm.offered(request, [RAM_CHUNKS + 2]) == [RAM_CHUNKS + 2]
    assert vllm.finish(request)["causes"] == []


def test_chunks_beyond_the_snapshot_are_refused(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request, chunks=2)
    vllm.load(1, request, [1, 2])
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]
    assert vllm.mover.told(protocol.Load) == []


def test_a_chunk_without_position_is_refused(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.coordinator.load(1, request, [(-1, 0)])
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]


def test_a_load_of_nothing_ends_at_once(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, [])
    assert [job.job_id for job in vllm.done()] == [1]
    assert vllm.mover.told(protocol.Load) == []


# Competing for the RAM tier


def test_the_second_of_two_large_loads_waits(vllm: FakeScheduler) -> None:
    first, second = arrive(vllm, 6), arrive(vllm, 6, session="s-2")
    for asked in vllm.mover.told(protocol.OpenLoad):
        vllm.mover.answer(protocol.LoadOpened(asked.plan_id, list(range(6)), []))
    assert vllm.may_match(first)
    assert not vllm.may_match(second)
    assert vllm.offered(second, range(6)) == []


def two_admitted(vllm: FakeScheduler) -> tuple[str, str]:
    """Return the first, which has the room, and the second, which waits."""
    first, second = in_line(vllm, 2)
    return first, second


def in_line(vllm: FakeScheduler, many: int) -> list[str]:
    """Return requests for one of which there is room, the one that came first."""
    line = [arrive(vllm, 6, session=f"s-{at}") for at in range(many)]
    for asked in vllm.mover.told(protocol.OpenLoad):
        vllm.mover.answer(protocol.LoadOpened(asked.plan_id, list(range(6)), []))
    assert [vllm.may_match(request) for request in line] == [True, *[False] * (many - 1)]
    return line


def test_it_goes_on_when_the_first_is_in_vram(vllm: FakeScheduler) -> None:
    first, second = two_admitted(vllm)
    load_all(vllm, first, 6)
    vllm.match(first, 0, 24)
    assert not vllm.may_match(second)
    vllm.coordinator.in_vram(first)
    assert vllm.may_match(second)


def test_it_goes_on_when_the_first_is_over(vllm: FakeScheduler) -> None:
    first, second = two_admitted(vllm)
    vllm.abort(first)
    assert vllm.may_match(second)


def test_it_goes_on_when_nothing_of_the_first_could_be_loaded(vllm: FakeScheduler) -> None:
    first, second = two_admitted(vllm)
    vllm.load(1, first, range(6))
    vllm.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset(range(6)))
    vllm.done()
    vllm.match(first, 0, 0)  # the first computes all of its prompt, which takes long
    assert vllm.may_match(second)


def test_it_is_served_without_its_snapshot_when_it_waited_too_long(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    _, second = two_admitted(vllm)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    assert vllm.may_match(second)
    assert vllm.offered(second, range(6)) == []
    vllm.match(second)
    assert reasons(vllm.finish(second)) == ["ram_tier_busy"]


def test_it_waits_on_while_the_line_moves_and_then_has_time_to_read(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    first, second, third = in_line(vllm, 3)
    clock.sleep(LIMITS.plan_deadline_s - 1)
    vllm.abort(first)
    assert vllm.may_match(second)
    clock.sleep(LIMITS.plan_deadline_s - 1)  # the third has waited longer than a plan may take
    assert not vllm.may_match(third)
    vllm.abort(second)
    assert vllm.may_match(third)
    clock.sleep(LIMITS.plan_deadline_s - 1)
    assert vllm.offered(third, range(6)) == list(range(6))


def test_it_never_waits_so_long_that_no_time_to_read_is_left(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    *ahead, last = in_line(vllm, 4)
    for request in ahead[:2]:
        clock.sleep(LIMITS.plan_deadline_s - 1)
        vllm.abort(request)
        for other in ahead:
            vllm.may_match(other)
        assert not vllm.may_match(last)
    clock.sleep(LIMITS.plan_deadline_s - 1)  # the line moved a moment ago
    assert vllm.may_match(last)
    vllm.match(last)
    assert reasons(vllm.finish(last)) == ["ram_tier_busy"]


# Time


def test_a_late_mover_means_that_the_prompt_is_computed(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = arrive(vllm)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    assert vllm.may_match(request)
    vllm.match(request)
    answer = vllm.finish(request)
    assert answer["causes"][0]["reason"] == "deadline"
    assert answer["causes"][0]["detail"] == "opening"


def test_an_answer_after_the_deadline_changes_nothing(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = arrive(vllm)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    vllm.may_match(request)
    admit(vllm, request)
    assert vllm.offered(request, range(3)) == []


def test_nothing_is_offered_past_the_deadline(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    assert vllm.offered(request, range(3)) == []


def test_a_long_answer_is_no_missed_deadline(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    load_all(vllm, request)
    vllm.match(request, 0, 12)
    vllm.coordinator.in_vram(request)
    clock.sleep(3600)
    assert vllm.finish(request)["causes"] == []


# Preemption


def preempted(vllm: FakeScheduler, clock: FakeClock) -> str:
    """Return a turn that lost its blocks after it was loaded."""
    request = arrive(vllm)
    admit(vllm, request)
    load_all(vllm, request)
    vllm.match(request, 0, 12)
    vllm.coordinator.in_vram(request)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    return request


def test_a_preempted_turn_is_offered_its_chunks_again(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = preempted(vllm, clock)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == [0, 1, 2]


def test_a_preempted_turn_waits_for_room_again(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = preempted(vllm, clock)
    large = arrive(vllm, RAM_CHUNKS, session="s-2")
    admit(vllm, large, RAM_CHUNKS)
    assert not vllm.may_match(request)
    clock.sleep(LIMITS.plan_deadline_s + 1)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == []


def test_a_preempted_turns_split_is_that_of_its_last_begin(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = preempted(vllm, clock)
    vllm.may_match(request)
    vllm.match(request, 12, 0)
    split = vllm.finish(request)["split"]
    assert (split["vram_tokens"], split["disk_tokens"]) == (12, 0)


# A resume and its outcome


def test_a_resume_that_has_everything_tells_so_itself(vllm: FakeScheduler) -> None:
    resume, outcome = arrive(vllm, op=TicketOp.RESUME), vllm.outcome()
    assert not vllm.may_match(outcome)
    admit(vllm, resume)
    load_all(vllm, resume)
    assert vllm.match(resume, 0, 12)
    vllm.coordinator.in_vram(resume)
    assert vllm.finish(resume)["split"]["disk_tokens"] == 12
    assert not vllm.may_match(outcome)  # it is cancelled, and costs no forward pass


def test_a_resume_that_lacks_kv_is_held_and_reports(vllm: FakeScheduler) -> None:
    resume, outcome = arrive(vllm, op=TicketOp.RESUME), vllm.outcome()
    admit(vllm, resume)
    vllm.load(1, resume, range(3))
    vllm.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset({1}))
    vllm.done()
    assert not vllm.match(resume, 0, 4)
    assert not vllm.may_match(resume)
    answer = vllm.finish(outcome)
    assert (answer["loadable_tokens"], reasons(answer)) == (4, ["snapshot_corrupt"])


def test_a_resume_larger_than_ram_reports_what_fits(vllm: FakeScheduler) -> None:
    chunks = RAM_CHUNKS + 3
    resume, outcome = arrive(vllm, chunks, op=TicketOp.RESUME), vllm.outcome()
    admit(vllm, resume, chunks)
    load_all(vllm, resume, RAM_CHUNKS)
    assert not vllm.match(resume, 0, RAM_CHUNKS * CHUNK_TOKENS)
    answer = vllm.finish(outcome)
    assert answer["loadable_tokens"] == RAM_CHUNKS * CHUNK_TOKENS
    assert reasons(answer) == ["ram_tier_too_small"]


def test_an_aborted_resume_settles_its_outcome(vllm: FakeScheduler) -> None:
    resume, outcome = arrive(vllm, op=TicketOp.RESUME), vllm.outcome()
    vllm.abort(resume)
    assert vllm.may_match(outcome)
    answer = vllm.finish(outcome)
    assert (answer["loadable_tokens"], reasons(answer)) == (0, ["aborted"])


def test_a_resume_that_was_preempted_and_lost_its_kv_reports_that(vllm: FakeScheduler) -> None:
    resume, outcome = arrive(vllm, op=TicketOp.RESUME), vllm.outcome()
    admit(vllm, resume)
    load_all(vllm, resume)
    assert vllm.match(resume, 0, 12)
    assert not vllm.match(resume, 0, 4)
    assert not vllm.may_match(resume)
    assert vllm.finish(outcome)["loadable_tokens"] == 4


def test_an_outcome_without_its_resume_is_answered_in_the_end(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    outcome = vllm.outcome()
    clock.sleep(LIMITS.hold_deadline_s - 1)
    assert not vllm.may_match(outcome)
    clock.sleep(2)
    assert vllm.may_match(outcome)
    answer = vllm.finish(outcome)
    assert (answer["ok"], answer["loadable_tokens"], reasons(answer)) == (False, 0, ["deadline"])


def test_a_held_resume_that_nobody_cancels_is_served_in_the_end(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    resume = arrive(vllm, op=TicketOp.RESUME)
    admit(vllm, resume)
    assert not vllm.match(resume, 0, 4)
    clock.sleep(LIMITS.hold_deadline_s + 1)
    assert vllm.may_match(resume)
    assert vllm.match(resume, 0, 4)


# The mover dies, hangs, or is not there


def test_death_while_opening_means_computing(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    vllm.mover.die()
    assert vllm.may_match(request)
    vllm.match(request)
    assert reasons(vllm.finish(request)) == ["mover_failed"]


def test_death_while_waiting_for_room_means_computing(vllm: FakeScheduler) -> None:
    _, second = two_admitted(vllm)
    vllm.mover.die()
    assert vllm.may_match(second)
    assert vllm.offered(second, range(6)) == []


def test_death_while_loading_fails_the_job(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, range(3))
    vllm.mover.die()
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == []


def test_death_after_loading_costs_nothing(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    load_all(vllm, request)
    vllm.mover.die()
    assert vllm.may_match(request)
    assert vllm.match(request, 0, 12)
    assert vllm.finish(request)["split"]["disk_tokens"] == 12


def test_a_mover_that_hangs_in_a_load_fails_the_job_when_it_is_gone(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock, FakeMovers(die_at_once=False))
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, range(3))
    clock.sleep(LIMITS.job_deadline_s + 1)
    assert vllm.done() == []
    assert vllm.mover.killed
    vllm.mover.gone = True
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]


def test_a_mover_that_hangs_while_opening_is_replaced(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    arrive(vllm)
    clock.sleep(LIMITS.job_deadline_s + 1)
    vllm.coordinator.poll()
    assert vllm.movers.all[0].killed
    assert len(vllm.movers.all) == 2


def test_while_a_mover_dies_requests_are_served_without(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock, FakeMovers(die_at_once=False))
    vllm.mover.die()
    request = arrive(vllm)
    assert vllm.may_match(request)
    vllm.match(request)
    assert reasons(vllm.finish(request)) == ["mover_failed"]


def test_a_load_submitted_while_a_mover_dies_ends_at_once(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock, FakeMovers(die_at_once=False))
    request = arrive(vllm)
    admit(vllm, request)
    vllm.mover.die()
    vllm.coordinator.poll()
    vllm.load(1, request, range(3))
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]


def test_the_next_request_is_served_by_the_new_mover(vllm: FakeScheduler) -> None:
    arrive(vllm)
    vllm.mover.die()
    vllm.coordinator.poll()
    request = arrive(vllm)
    admit(vllm, request)
    assert vllm.offered(request, range(3)) == [0, 1, 2]


# Aborted, or switched off


def test_a_request_aborted_while_loading_ends_its_job_once(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, range(3))
    vllm.abort(request)
    assert vllm.done() == []
    vllm.mover.end_load()
    assert [job.job_id for job in vllm.done()] == [1]
    assert vllm.done() == []


def test_an_answer_for_a_closed_plan_is_dropped(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    vllm.abort(request)
    vllm.mover.open_load(3)
    vllm.coordinator.poll()
    assert vllm.offered(request, range(3)) == []


@pytest.mark.parametrize("phase", ["opening", "admitted", "loading", "loaded"])
def test_switched_off_in_any_phase_nothing_more_is_offered(vllm: FakeScheduler, phase: str) -> None:
    request = arrive(vllm)
    if phase != "opening":
        admit(vllm, request)
    if phase in ("loading", "loaded"):
        vllm.load(1, request, range(3))
    if phase == "loaded":
        vllm.mover.end_load()
        vllm.done()
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))
    assert vllm.offered(request, range(3)) == []
    assert vllm.may_match(request)
    assert reasons(vllm.finish(request)) == ["tier_off"]


# A plan that limits a load


def test_nothing_is_loaded_beyond_what_the_ticket_names(vllm: FakeScheduler) -> None:
    request = arrive(vllm, chunks=4, restorable_tokens=2 * CHUNK_TOKENS)
    admit(vllm, request, chunks=4)
    assert vllm.offered(request, range(4)) == [0, 1]


def test_a_snapshot_that_must_not_be_loaded_is_compared_all_the_same(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = arrive(vllm, may_load=0)
    assert vllm.may_match(request)  # it does not wait for the mover
    (asked,) = vllm.mover.told(protocol.OpenLoad)
    vllm.mover.answer(protocol.LoadOpened(asked.plan_id, [0, 1, 2], [], 13, 12, 13))
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == []
    vllm.match(request, CHUNK_TOKENS)  # such as a system prompt of another session
    clock.sleep(LIMITS.plan_deadline_s + 1.0)
    answer = vllm.finish(request)
    assert answer["tokens_total"] == 13  # so it does not pass for a warm one
    assert answer["timing"]["lookup_s"] == 0.0
    assert answer["causes"] == []


def test_a_load_has_its_own_time_to_read(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = arrive(vllm, load_limit_ms=1500)
    clock.sleep(1.0)  # until it is admitted, nothing is read
    admit(vllm, request)
    admitted_s = clock.now_s
    vllm.load(1, request, range(2))
    (asked,) = vllm.mover.told(protocol.Load)
    assert asked.until_s == pytest.approx(admitted_s + 1.5)
    assert vllm.offered(request, range(3)) == [0, 1, 2]
    vllm.mover.end_load(Cause(Reason.DEADLINE), failed=frozenset({1}))
    vllm.done()
    assert vllm.offered(request, range(3)) == [0, 2]  # what is there is used
    clock.sleep(1.6)
    assert vllm.offered(request, range(3)) == []
    assert vllm.may_match(request)
    vllm.match(request, 0, CHUNK_TOKENS)
    assert reasons(vllm.finish(request)) == ["deadline"]


def test_a_load_that_vllm_asks_for_too_late_tells_why_nothing_came(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = arrive(vllm, load_limit_ms=1500)
    admit(vllm, request)
    clock.sleep(1.6)
    assert vllm.offered(request, range(3)) == []
    vllm.match(request)
    assert reasons(vllm.finish(request)) == ["deadline"]


def test_a_preempted_request_has_its_time_to_read_anew(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = arrive(vllm, load_limit_ms=1500)
    admit(vllm, request)
    vllm.match(request)
    clock.sleep(5.0)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == [0, 1, 2]


def test_without_a_limit_all_is_read(vllm: FakeScheduler) -> None:
    request = arrive(vllm)
    admit(vllm, request)
    vllm.load(1, request, range(3))
    (asked,) = vllm.mover.told(protocol.Load)
    assert asked.until_s == 0.0
