"""Whoever asks learns when the heads of all that has ended are files."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sessiond.connector.headbook import HeadBook, IdHolder
from sessiond.connector.headfiles import HeadFiles
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing.fake_mover import FakeClock, FakeMover, FakeMovers
from sessiond.testing.fake_scheduler import LIMITS, FakeScheduler, tokens_of

_numbers = itertools.count()
FULL = Cause(Reason.STORE_FULL)


def ask(vllm: FakeScheduler, session: str = "") -> str:
    operation = f"heads-{next(_numbers)}"
    ticket = vllm.ticket(TicketOp.HEADS, operation_id=operation, session=session)
    return vllm.arrive(ticket, tokens_of(0))


def answered(vllm: FakeScheduler, request: str) -> tuple[bool, list[str]]:
    assert vllm.may_match(request)
    assert vllm.match(request)
    answer = vllm.finish(request)
    return answer["heads_written"], [cause["reason"] for cause in answer["causes"]]


def heads(mover: FakeMover) -> list[protocol.WriteHead]:
    return mover.told(protocol.WriteHead)


@pytest.fixture
def slow(vllm: FakeScheduler) -> FakeScheduler:
    """An engine whose mover writes heads when the test says so."""
    vllm.coordinator.poll()
    vllm.mover.writes_heads = False
    return vllm


def write(vllm: FakeScheduler, head: protocol.WriteHead, *causes: Cause) -> None:
    told = [dict(cause.as_json()) for cause in causes]
    vllm.mover.answer(protocol.HeadWritten(head.head_id, told))


def test_without_any_head_the_answer_comes_at_once(vllm: FakeScheduler) -> None:
    assert answered(vllm, ask(vllm)) == (True, [])


def test_the_newest_head_of_a_turn_that_has_ended_is_waited_for(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    begun, ended = heads(slow.mover)
    write(slow, begun)
    assert not slow.may_match(request)
    write(slow, ended)
    assert answered(slow, request) == (True, [])


def test_what_ends_later_is_not_waited_for(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    for head in heads(slow.mover):
        write(slow, head)
    slow.take_turn(tokens_of(3), session="s-2")
    assert answered(slow, request) == (True, [])


def test_a_turn_in_flight_is_not_waited_for(vllm: FakeScheduler) -> None:
    vllm.arrive(vllm.ticket(), tokens_of(3))  # its head says that it is
    assert answered(vllm, ask(vllm)) == (True, [])


def test_a_new_movers_heads_are_waited_for(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    slow.movers.write_heads = False
    slow.mover.die()
    assert not slow.may_match(request)
    (told_again,) = heads(slow.mover)
    write(slow, told_again)
    assert answered(slow, request) == (True, [])


def test_while_a_mover_is_dying_nobody_knows(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock, FakeMovers(die_at_once=False))
    vllm.mover.die()
    vllm.coordinator.poll()
    request = ask(vllm)
    assert not vllm.may_match(request)
    vllm.mover.gone = True
    assert not vllm.may_match(request)  # another one was started
    assert answered(vllm, request) == (True, [])


def test_with_no_mover_for_good_the_answer_is_no(vllm: FakeScheduler) -> None:
    for _ in range(MAX_DEATHS):
        vllm.mover.die()
        vllm.coordinator.poll()
    assert answered(vllm, ask(vllm)) == (False, ["mover_failed"])


def test_an_engine_that_does_not_know_itself_says_so(clock: FakeClock) -> None:
    class Pending:
        pending = Cause(Reason.IDENTITY_PENDING, "16 GB")

        def look(self) -> None:
            return None

        def wait(self, timeout_s: float) -> None:
            """Nobody waits here."""

    vllm = FakeScheduler(clock, start_mover=Pending())
    vllm.take_turn(tokens_of(3))
    assert answered(vllm, ask(vllm)) == (False, ["identity_pending"])


def test_a_head_that_could_not_be_written_is_tried_once_more(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    for head in heads(slow.mover):
        write(slow, head, FULL)
    slow.coordinator.poll()
    request = ask(slow)
    assert not slow.may_match(request)
    assert len(heads(slow.mover)) == 3
    write(slow, heads(slow.mover)[-1])
    assert answered(slow, request) == (True, [])


def test_one_that_cannot_be_written_at_all_is_told(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    for head in heads(slow.mover):
        write(slow, head, FULL)
    assert answered(slow, request) == (False, ["store_full"])


def test_a_newer_head_makes_up_for_one_that_could_not_be_written(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    begun, ended = heads(slow.mover)
    write(slow, begun, FULL)
    write(slow, ended)
    assert answered(slow, ask(slow)) == (True, [])


def test_the_tier_being_off_changes_nothing(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.coordinator.poll()
    assert answered(vllm, ask(vllm)) == (True, [])


def test_it_leaves_no_head_and_no_trace(vllm: FakeScheduler) -> None:
    answer: tuple[Any, ...] = answered(vllm, ask(vllm))
    assert answer == (True, [])
    assert heads(vllm.mover) == []
    assert not vllm.coordinator.has_work()


def test_nobody_is_held_for_longer_than_others(slow: FakeScheduler, clock: FakeClock) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    clock.sleep(LIMITS.hold_deadline_s + 1)
    assert slow.may_match(request)
    assert slow.match(request)
    answer = slow.finish(request)
    assert not answer["ok"]
    assert not answer.get("heads_written")


def test_a_failure_concerns_its_own_session_and_whoever_asks_for_all(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    for head in heads(slow.mover):
        write(slow, head, FULL)
    slow.coordinator.poll()
    asked = [ask(slow, "s-1"), ask(slow, "s-2"), ask(slow)]
    for head in heads(slow.mover)[2:]:
        write(slow, head, FULL)
    assert [answered(slow, request) for request in asked] == [
        (False, ["store_full"]), (True, []), (False, ["store_full"]),
    ]  # fmt: skip


def test_a_newer_head_that_is_only_on_its_way_makes_up_for_nothing(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    slow.arrive(slow.ticket(operation_id="op-2"), tokens_of(4))  # the next turn begins
    begun, ended, _ = heads(slow.mover)
    write(slow, begun, FULL)
    write(slow, ended, FULL)
    assert answered(slow, request) == (False, ["store_full"])


def test_somebody_elses_attempt_makes_up_for_nothing_before_it_is_done(
    slow: FakeScheduler,
) -> None:
    slow.take_turn(tokens_of(3))
    request = ask(slow)
    for head in heads(slow.mover):
        write(slow, head, FULL)
    slow.coordinator.poll()
    ask(slow)
    assert answered(slow, request) == (False, ["store_full"])


def test_a_failure_is_forgotten_with_its_session(vllm: FakeScheduler) -> None:
    vllm.mover.writes_heads = False
    vllm.take_turn(tokens_of(3), session="first")
    for head in heads(vllm.mover):
        write(vllm, head, FULL)
    vllm.coordinator.poll()
    vllm.mover.writes_heads = True
    for number in range(4):  # the engine remembers 10,000 tokens
        vllm.take_turn(tokens_of(1200), session=f"s-{number}")
    assert answered(vllm, ask(vllm)) == (True, [])


def test_a_new_mover_begins_without_failures(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    for head in heads(slow.mover):
        write(slow, head, FULL)
    slow.coordinator.poll()
    slow.mover.die()
    assert answered(slow, ask(slow)) == (True, [])


def test_an_answer_that_was_lost_on_the_way_is_made_up_for(slow: FakeScheduler) -> None:
    slow.take_turn(tokens_of(3))
    slow.take_turn(tokens_of(3), session="s-2")
    write(slow, heads(slow.mover)[-1])
    slow.coordinator.poll()
    slow.mover.writes_heads = True
    assert answered(slow, ask(slow)) == (True, [])
    assert len(heads(slow.mover)) == 5  # the one of s-1 once more


def test_where_there_is_no_mover_nothing_is_remembered(clock: FakeClock) -> None:
    vllm = FakeScheduler(clock)
    for _ in range(MAX_DEATHS):
        vllm.mover.die()
        vllm.coordinator.poll()
    files = HeadFiles(vllm.coordinator._mover)
    head = HeadBook("e", 1000).begin_turn(IdHolder(("t", "s")), 0.0)
    assert head is not None
    for _ in range(10):
        files.write(head)
    assert not files._asked
