from __future__ import annotations

from typing import Any

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS, JobDone
from sessiond.domain.lines import MAX_BRANCHES
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp, causes_text, sign
from sessiond.domain.tokens import from_bytes
from sessiond.testing.fake_mover import FakeClock
from sessiond.testing.fake_scheduler import ENGINE_ID, LIMITS, FakeScheduler, tokens_of


def reasons(answer: dict[str, Any]) -> list[str]:
    return [cause["reason"] for cause in answer["causes"]]


# Requests without a ticket, and with a bad one


def test_a_request_without_a_ticket_is_none_of_our_business(vllm: FakeScheduler) -> None:
    request = vllm.arrive(None, tokens_of(3))
    assert vllm.may_match(request)
    assert vllm.match(request)
    assert vllm.finish(request) == {}
    assert vllm.mover.sent == []


def test_chunks_of_a_request_without_a_ticket_are_never_offered(vllm: FakeScheduler) -> None:
    request = vllm.arrive(None, tokens_of(3))
    assert vllm.offered(request, range(3)) == []
    assert vllm.storable(request, range(3)) == []


def test_jobs_of_a_request_without_a_ticket_end_at_once(vllm: FakeScheduler) -> None:
    request = vllm.arrive(None, tokens_of(3))
    vllm.load(1, request, [0])
    vllm.store(2, request, [0])
    assert vllm.done() == [
        JobDone(1, frozenset(), all_good=False),
        JobDone(2, frozenset(), all_good=True),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_id": "f" * 32},
        {"salt_hash": "0" * 32},
        {"not_before_unix_s": 0, "expires_unix_s": 1},
        {"expires_unix_s": 0},
    ],
    ids=str,
)
def test_a_ticket_for_something_else_is_refused(
    vllm: FakeScheduler, fields: dict[str, Any]
) -> None:
    request = vllm.arrive(vllm.ticket(**fields), tokens_of(3))
    assert vllm.may_match(request)
    answer = vllm.finish(request)
    assert (answer["ok"], reasons(answer)) == (False, ["ticket_invalid"])
    assert answer["causes"][0]["detail"]
    assert vllm.mover.sent == []


@pytest.mark.parametrize("text", ["", "x", "v1.a.b", "v1." + "A" * 5000])
def test_what_is_no_ticket_is_refused(vllm: FakeScheduler, text: str) -> None:
    assert reasons(vllm.finish(vllm.arrive(text, tokens_of(3)))) == ["ticket_invalid"]


def test_a_ticket_signed_with_another_key_is_refused(vllm: FakeScheduler) -> None:
    request = vllm.arrive(sign(vllm.ticket(), b"x" * 32), tokens_of(3))
    assert reasons(vllm.finish(request)) == ["ticket_invalid"]


@pytest.mark.parametrize("salt", [None, "", "other"])
def test_another_cache_salt_than_the_tickets_is_refused(
    vllm: FakeScheduler, salt: str | None
) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3), cache_salt=salt)
    assert reasons(vllm.finish(request)) == ["ticket_invalid"]


def test_a_request_with_images_is_served_and_not_kept(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(2))
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3), plain_text=False)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == []
    answer = vllm.finish(request)
    assert (answer["ok"], reasons(answer)) == (False, ["not_text"])
    head = vllm.published()
    assert (head.unkept, head.turns_in_flight, len(head.branches)) == ("not_text", 0, 1)
    assert head.last_turn is not None
    assert head.last_turn["turn_id"] == "op-1"  # of its ticket
    assert head.last_turn["split"] is None  # vLLM may have had some of it in VRAM: nobody knows
    assert vllm.mover.told(protocol.OpenLoad) == []


def test_a_side_call_with_an_image_leaves_the_conversation_alone(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    side = vllm.arrive(vllm.ticket(), tokens_of(1, first=1000), plain_text=False)
    assert reasons(vllm.finish(side)) == ["not_text"]
    assert vllm.published().unkept == ""
    vllm.begin_suspend(tokens_of(3), 3)
    assert vllm.mover.told(protocol.OpenSuspend)


def test_a_turn_whose_image_comes_first_is_one_of_the_conversation(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    vllm.finish(vllm.arrive(vllm.ticket(), tokens_of(4, first=1000), plain_text=False))
    assert vllm.published().unkept == "not_text"


def test_after_images_an_older_branch_is_not_suspended(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    vllm.finish(vllm.arrive(vllm.ticket(), tokens_of(4), plain_text=False))
    commit = vllm.commit()
    vllm.begin_suspend(tokens_of(3), 3)
    assert vllm.may_match(commit)
    assert reasons(vllm.finish(commit)) == ["not_text"]
    vllm.take_turn(tokens_of(4))
    assert vllm.published().unkept == ""


def test_only_a_turn_with_images_concerns_the_head(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(2))
    told = len(vllm.mover.sent)
    vllm.arrive(vllm.ticket(TicketOp.RESUME), tokens_of(3), plain_text=False)
    assert reasons(vllm.finish(vllm.outcome())) == ["not_text"]
    assert len(vllm.mover.sent) == told


def test_a_refused_request_is_forgotten(vllm: FakeScheduler) -> None:
    request = vllm.arrive("x", tokens_of(3))
    vllm.coordinator.submits_over(request)
    assert vllm.finish(request) == {}


# Turns and heads


def test_an_answer_names_engine_and_operation(vllm: FakeScheduler) -> None:
    answer = vllm.take_turn(tokens_of(3), generation=0)
    assert (answer["engine_id"], answer["op"], answer["ok"]) == (ENGINE_ID, "turn", True)
    assert (answer["generation"], answer["preemptions"], answer["causes"]) == (0, 0, [])


def test_a_turn_in_flight_is_published(vllm: FakeScheduler) -> None:
    vllm.arrive(vllm.ticket(), tokens_of(3))
    head = vllm.published()
    assert (head.tenant, head.session, head.turns_in_flight) == ("acme", "s-1", 1)


def test_a_turns_head_is_published_with_its_tokens(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    head = vllm.published()
    assert head.turns_in_flight == 0
    assert [branch["tokens"] for branch in head.branches] == [13]
    assert from_bytes(head.payload) == tokens_of(3)


def test_branches_are_published_one_after_the_other(vllm: FakeScheduler) -> None:
    for first in range(MAX_BRANCHES):
        vllm.clock.sleep(1)
        vllm.take_turn(tokens_of(2, first=1000 * first))
    head = vllm.published()
    main, *others = range(MAX_BRANCHES)  # the first is the conversation, the others are beside
    expected = b"".join(
        tokens_of(2, first=1000 * first).tobytes() for first in (main, *reversed(others))
    )
    assert (len(head.branches), head.payload) == (MAX_BRANCHES, expected)


def test_an_aborted_turn_leaves_what_was_computed(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.match(request)
    vllm.finish(request, aborted=True, computed_tokens=6)
    assert from_bytes(vllm.published().payload) == tokens_of(3)[:7]


def test_a_turn_aborted_before_its_begin_leaves_nothing(vllm: FakeScheduler) -> None:
    vllm.abort(vllm.arrive(vllm.ticket(), tokens_of(3)))
    head = vllm.published()
    assert (head.turns_in_flight, head.branches) == (0, [])


def test_a_turn_whose_end_is_not_told_runs_no_more_when_its_request_is_over(
    vllm: FakeScheduler,
) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.coordinator.submits_over(request)
    assert vllm.published().turns_in_flight == 0


def test_two_turns_at_once_are_both_counted(vllm: FakeScheduler) -> None:
    first, _ = (vllm.arrive(vllm.ticket(), tokens_of(3)) for _ in range(2))
    vllm.finish(first)
    assert vllm.published().turns_in_flight == 1


def test_a_resume_ends_no_turn(vllm: FakeScheduler) -> None:
    vllm.arrive(vllm.ticket(), tokens_of(3))
    resume = vllm.arrive(vllm.ticket(TicketOp.RESUME), tokens_of(2))
    vllm.match(resume, vram_tokens=8)
    vllm.finish(resume)
    assert vllm.published().turns_in_flight == 1


def test_a_resume_leaves_its_prompt_and_not_what_it_sampled(vllm: FakeScheduler) -> None:
    resume = vllm.arrive(vllm.ticket(TicketOp.RESUME), tokens_of(2))
    vllm.match(resume, vram_tokens=8)
    vllm.finish(resume, [77])
    assert from_bytes(vllm.published().payload) == tokens_of(2)


@pytest.mark.parametrize("op", [TicketOp.COMMIT, TicketOp.OUTCOME])
def test_waiting_requests_leave_no_head(vllm: FakeScheduler, op: TicketOp) -> None:
    vllm.finish(vllm.arrive(vllm.ticket(op), tokens_of(1)))
    assert vllm.mover.sent == []


def test_a_turn_of_a_deleted_session_is_no_part_of_the_one_that_has_its_id(
    vllm: FakeScheduler,
) -> None:
    late = vllm.arrive(vllm.ticket(session_created_unix_us=1), tokens_of(4, first=1000))
    vllm.match(late)
    vllm.take_turn(tokens_of(3), session_created_unix_us=2)
    published = vllm.published()
    assert published.session_created_unix_us == 2
    assert (published.turns_in_flight, [one["tokens"] for one in published.branches]) == (0, [13])
    assert reasons(vllm.finish(late)) == ["session_deleted"]
    assert vllm.published() == published


def test_a_ticket_of_a_deleted_session_is_worth_nothing_once_its_id_is_a_new_ones(
    vllm: FakeScheduler,
) -> None:
    vllm.take_turn(tokens_of(3), session_created_unix_us=2)
    published, told = vllm.published(), len(vllm.mover.sent)
    answer = vllm.take_turn(tokens_of(4, first=1000), generation=1, session_created_unix_us=1)
    assert (answer["ok"], reasons(answer)) == (False, ["session_deleted"])
    vllm.arrive(vllm.ticket(TicketOp.RESUME, session_created_unix_us=1), tokens_of(3))
    assert reasons(vllm.finish(vllm.outcome(session_created_unix_us=1))) == ["session_deleted"]
    assert (vllm.published(), len(vllm.mover.sent)) == (published, told)


def test_a_suspend_of_a_deleted_session_does_not_store_what_has_its_id(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3), session_created_unix_us=2)
    commit = vllm.commit(session_created_unix_us=1)
    vllm.begin_suspend(tokens_of(3), 3, session_created_unix_us=1)
    assert vllm.may_match(commit)
    assert reasons(vllm.finish(commit)) == ["session_deleted"]


def test_the_split_of_a_turn_computed_from_scratch(vllm: FakeScheduler) -> None:
    assert vllm.take_turn(tokens_of(3, extra=2))["split"] == {
        "prompt_tokens": 13,
        "vram_tokens": 0,
        "ram_tokens": 0,
        "disk_tokens": 0,
    }


def test_the_split_counts_vram_and_ram(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(4))
    vllm.match(request, vram_tokens=4, external_tokens=8)
    split = vllm.finish(request)["split"]
    assert (split["vram_tokens"], split["ram_tokens"], split["disk_tokens"]) == (4, 8, 0)


def test_the_second_call_for_an_asynchronous_load_changes_no_split(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(4))
    vllm.match(request, vram_tokens=4, external_tokens=8)
    vllm.coordinator.scheduled(request, 0)
    assert vllm.finish(request)["split"]["ram_tokens"] == 8


@pytest.mark.parametrize(
    ("uncounted", "split"), [(0, (4, 8)), (4, (4, 4)), (10, (2, 0)), (12, (0, 0))]
)
def test_only_what_vllm_counts_as_cached_was_restored(
    vllm: FakeScheduler, uncounted: int, split: tuple[int, int]
) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(4))
    vllm.match(request, vram_tokens=4, external_tokens=8, uncounted_tokens=uncounted)
    told = vllm.finish(request)
    assert (told["split"]["vram_tokens"], told["split"]["ram_tokens"]) == split
    assert reasons(told) == (["not_confirmed"] if uncounted else [])
    published = vllm.published().last_turn
    assert published is not None
    assert published["split"] == told["split"]


@pytest.mark.parametrize(
    ("vram_tokens", "told"), [(0, ["weights_mismatch"]), (8, ["weights_mismatch"]), (12, [])]
)
def test_a_turn_tells_what_its_ticket_knew_if_it_computes_what_was_there(
    vllm: FakeScheduler, vram_tokens: int, told: list[str]
) -> None:
    cause = Cause(Reason.WEIGHTS_MISMATCH, stored="a", live="b")
    context = tokens_of(3, extra=2)
    vllm.take_turn(context)
    request = vllm.arrive(vllm.ticket(causes=causes_text([cause])), context + tokens_of(1))
    vllm.match(request, vram_tokens=vram_tokens)
    answer = vllm.finish(request)
    assert reasons(answer) == told
    assert [Cause.from_json(one) for one in answer["causes"]] == [cause] * len(told)


# The tier goes off


def test_off_means_no_heads(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))
    assert vllm.published().branches == []


def test_off_means_that_turns_say_so(vllm: FakeScheduler) -> None:
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF, "reset"))
    answer = vllm.take_turn(tokens_of(3), generation=1)
    assert (answer["ok"], reasons(answer)) == (True, ["tier_off"])


def test_the_first_reason_for_being_off_stands(vllm: FakeScheduler) -> None:
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF, "reset"))
    vllm.coordinator.turn_off(Cause(Reason.MOVER_FAILED))
    assert vllm.coordinator.tier.off == Cause(Reason.TIER_OFF, "reset")


def test_too_many_deaths_turn_it_off(vllm: FakeScheduler) -> None:
    for _ in range(MAX_DEATHS):
        vllm.mover.die()
        vllm.coordinator.poll()
    assert vllm.coordinator.tier.off is not None
    assert vllm.coordinator.tier.off.reason is Reason.MOVER_FAILED
    assert reasons(vllm.take_turn(tokens_of(3), generation=1)) == ["mover_failed"]


def test_fewer_deaths_do_not(vllm: FakeScheduler) -> None:
    for _ in range(MAX_DEATHS - 1):
        vllm.mover.die()
        vllm.coordinator.poll()
    assert vllm.coordinator.tier.off is None


# A mover is replaced


def test_a_new_mover_is_told_the_heads_that_the_dead_one_may_not_have_written(
    vllm: FakeScheduler,
) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.finish(request)
    vllm.mover.die()
    vllm.coordinator.poll()
    assert len(vllm.movers.all) == 2
    assert vllm.published().turns_in_flight == 0


def test_a_mover_that_died_in_the_meantime_is_replaced_before_a_request_needs_it(
    vllm: FakeScheduler,
) -> None:
    vllm.mover.die()
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == [0, 1, 2]


def test_draining_ends_when_the_jobs_have(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    vllm.may_match(request)
    vllm.load(1, request, [0])
    vllm.coordinator.drain()  # the clock passes the job's deadline
    assert vllm.movers.all[0].killed
    assert vllm.done() == [JobDone(1, frozenset(), all_good=False)]


def test_closing_ends_the_mover(vllm: FakeScheduler) -> None:
    vllm.coordinator.close()
    assert vllm.mover.closed


def test_an_idle_engine_has_no_work_for_us(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    vllm.coordinator.poll()  # the heads were written
    assert not vllm.coordinator.has_work()


def test_a_mover_that_does_not_write_heads_is_replaced(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    vllm.mover.writes_heads = False
    vllm.take_turn(tokens_of(3))
    assert vllm.coordinator.has_work()
    clock.sleep(LIMITS.job_deadline_s + 1)
    vllm.coordinator.poll()
    assert len(vllm.movers.all) == 2
    assert vllm.published().turns_in_flight == 0


def test_a_turn_whose_kv_is_in_vram_does_not_wait_for_the_disk(vllm: FakeScheduler) -> None:
    ticket = vllm.ticket(generation=1, restorable_tokens=2 * LIMITS.chunk_tokens)
    request = vllm.arrive(ticket, tokens_of(5))
    assert not vllm.may_match(request, LIMITS.chunk_tokens)
    assert vllm.may_match(request, 2 * LIMITS.chunk_tokens)
    assert vllm.offered(request, range(5)) == []
