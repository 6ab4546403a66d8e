"""An operator's word after a reset: what the connector checks, and what begins anew."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sessiond.connector.attest import KV_LEFT, RESET, RESET_AGAIN, RESET_UNCLEAR, TierState
from sessiond.connector.mover import protocol
from sessiond.connector.moverwatch import MAX_DEATHS
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing.fake_scheduler import FakeScheduler, tokens_of

_PATIENCE_S = 10.0
_numbers = itertools.count()


def details(answer: dict[str, Any]) -> list[str]:
    return [cause.get("detail", "") for cause in answer["causes"]]


def begin(vllm: FakeScheduler, resets: int = 1) -> str:
    operation = f"attest-{next(_numbers)}"
    ticket = vllm.ticket(TicketOp.ATTEST, generation=resets, operation_id=operation)
    return vllm.arrive(ticket, tokens_of(0))


def attested(vllm: FakeScheduler, resets: int = 1) -> dict[str, Any]:
    """Return the answer to an attestation, as the engine gives it when it is scheduled."""
    request = begin(vllm, resets)
    until_s = time.monotonic() + _PATIENCE_S
    while not vllm.may_match(request):
        assert time.monotonic() < until_s
        time.sleep(0.001)
    return vllm.finish(request)


def test_an_operators_word_turns_it_on_again(vllm: FakeScheduler) -> None:
    told: list[TierState] = []
    vllm.coordinator.tier.on_change = told.append
    vllm.coordinator.caches_reset(emptied=True)
    assert attested(vllm)["tier_on"] is True
    assert told == [
        TierState(RESET.detail, "tier_off", attestable=True, resets=1),
        TierState("", "", attestable=False, resets=1),
    ]
    assert vllm.coordinator.tier.off is None


def test_one_that_is_on_stays_on(vllm: FakeScheduler) -> None:
    answer = attested(vllm, resets=7)
    assert (answer["tier_on"], answer["causes"]) == (True, [])


def off_for_good(vllm: FakeScheduler) -> None:
    vllm.coordinator.turn_off(Cause(Reason.TIER_OFF, "weights may change in place: sleep mode"))
    vllm.coordinator.caches_reset(emptied=True)


def off_by_deaths(vllm: FakeScheduler) -> None:
    for _ in range(MAX_DEATHS):
        vllm.mover.die()
        vllm.coordinator.poll()
    vllm.coordinator.caches_reset(emptied=True)


def off_and_the_mover_gone(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.movers.refuses = True
    vllm.mover.die()


def reset_in_part(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.coordinator.tier.off = RESET_UNCLEAR


def reset_with_a_request_running(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=False)


def reset_twice(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.coordinator.caches_reset(emptied=True)


def files_changed(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.coordinator.tier.attestor.changed_files = lambda: ["a", "b", "c", "d"]


def files_out_of_reach(vllm: FakeScheduler) -> None:
    def fail() -> list[str]:
        raise OSError("the file server is gone")

    vllm.coordinator.caches_reset(emptied=True)
    vllm.coordinator.tier.attestor.changed_files = fail


@pytest.mark.parametrize(
    ("story", "detail"),
    [
        (off_for_good, "weights may change in place: sleep mode"),
        (off_by_deaths, ""),
        (off_and_the_mover_gone, ""),
        (reset_in_part, RESET_UNCLEAR.detail),
        (reset_with_a_request_running, KV_LEFT.detail),
        (reset_twice, RESET_AGAIN.detail),
        (files_changed, "changed since the engine started: a, b, c"),
        (
            files_out_of_reach,
            "changed since the engine started: the model's files cannot be looked at",
        ),
    ],
)
def test_no_word_turns_it_on_otherwise(
    vllm: FakeScheduler, story: Callable[[FakeScheduler], None], detail: str
) -> None:
    story(vllm)
    answer = attested(vllm)
    assert (answer["ok"], answer["tier_on"], details(answer)) == (True, False, [detail])
    assert vllm.coordinator.tier.off is not None


def test_no_ticket_of_another_kind_does(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    for op in set(TicketOp) - {TicketOp.ATTEST}:
        vllm.may_match(vllm.arrive(vllm.ticket(op, generation=1), tokens_of(2)))
    assert vllm.coordinator.tier.off == RESET


def test_files_are_looked_at_while_the_engine_goes_on(vllm: FakeScheduler) -> None:
    looking, looked = threading.Event(), threading.Event()

    def look() -> list[str]:
        looking.set()
        looked.wait(_PATIENCE_S)
        return []

    vllm.coordinator.tier.attestor.changed_files = look
    vllm.coordinator.caches_reset(emptied=True)
    request = begin(vllm)
    assert not vllm.may_match(request)
    assert looking.wait(_PATIENCE_S)
    assert not vllm.may_match(request)
    vllm.take_turn(tokens_of(2))
    looked.set()
    until_s = time.monotonic() + _PATIENCE_S
    while not vllm.may_match(request):
        assert time.monotonic() < until_s
    assert vllm.finish(request)["tier_on"] is True


def test_a_reset_while_files_are_looked_at_undoes_it(vllm: FakeScheduler) -> None:
    looked = threading.Event()
    attestor = vllm.coordinator.tier.attestor
    attestor.changed_files = lambda: [] if looked.wait(_PATIENCE_S) else ["late"]
    vllm.coordinator.caches_reset(emptied=True)
    request = begin(vllm)
    assert not vllm.may_match(request)
    vllm.coordinator.caches_reset(emptied=True)
    looked.set()
    assert vllm.may_match(request)
    assert details(vllm.finish(request)) == [RESET_AGAIN.detail]


def test_one_that_is_never_scheduled_does_nothing(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    vllm.abort(begin(vllm))  # the engine slept until its sender gave up
    assert vllm.coordinator.tier.off == RESET


def test_one_that_waited_too_long_does_nothing(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    request = begin(vllm)
    vllm.clock.sleep(vllm.limits.hold_deadline_s + 1)
    assert vllm.may_match(request)
    answer = vllm.finish(request)
    assert (answer["ok"], vllm.coordinator.tier.off) == (False, RESET)


# What began before the reset


def scheduled_suspend(vllm: FakeScheduler) -> str:
    head = tokens_of(3, extra=2)
    vllm.take_turn(head)
    request = vllm.begin_suspend(head, 3)
    vllm.mover.open_suspend()
    assert vllm.may_match(request)
    assert vllm.match(request, 12, 0)
    vllm.store(5, request, range(3))
    return request


def test_a_suspend_of_before_is_not_committed_after(vllm: FakeScheduler) -> None:
    request = scheduled_suspend(vllm)
    vllm.coordinator.caches_reset(emptied=True)
    assert attested(vllm)["tier_on"] is True
    vllm.mover.end_store()
    vllm.done()
    vllm.finish(request)
    assert [asked.commit for asked in vllm.mover.told(protocol.FinishSuspend)] == [False]
    commit = vllm.commit()
    assert vllm.may_match(commit)
    answer = vllm.finish(commit)
    assert (answer["committed"], details(answer)) == (False, [RESET.detail])


@pytest.mark.parametrize("too_late", [False, True])
def test_a_commit_that_was_asked_for_is_discarded_if_it_is_not_too_late(
    vllm: FakeScheduler,
    too_late: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    request, commit = scheduled_suspend(vllm), vllm.commit()
    vllm.mover.end_store()
    vllm.done()
    vllm.finish(request)
    (asked,) = vllm.mover.told(protocol.FinishSuspend)
    assert asked.commit
    vllm.coordinator.caches_reset(emptied=True)
    assert [told.plan_id for told in vllm.mover.told(protocol.DiscardSuspend)] == [asked.plan_id]
    assert not vllm.may_match(commit)  # only the mover knows how it ended
    vllm.mover.finish_suspend(committed=too_late)
    assert vllm.may_match(commit)
    answer = vllm.finish(commit)
    assert (answer["committed"], details(answer)) == (too_late, [RESET.detail])


def test_a_reset_waits_for_commits_that_it_cannot_stop(vllm: FakeScheduler) -> None:
    request = scheduled_suspend(vllm)
    vllm.mover.end_store()
    vllm.done()
    vllm.finish(request)
    mover = vllm.mover
    sleeps = vllm.clock.sleep

    def sleep(seconds: float) -> None:
        sleeps(seconds)
        mover.finish_suspend()

    vllm.coordinator.caches_reset(emptied=True)
    vllm.clock.sleep = sleep  # type: ignore[method-assign]
    vllm.coordinator.drain()
    assert not vllm.coordinator.has_work()


def test_a_load_of_before_offers_nothing_after(vllm: FakeScheduler) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    assert vllm.may_match(request)
    assert vllm.offered(request, range(3)) == [0, 1, 2]
    vllm.coordinator.caches_reset(emptied=True)
    attested(vllm)
    assert vllm.offered(request, range(3)) == []


def test_what_comes_after_is_kept_and_loaded(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    attested(vllm)
    scheduled_suspend(vllm)
    later = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    assert vllm.may_match(later)
    assert vllm.offered(later, range(3)) == [0, 1, 2]


def test_a_second_reset_turns_it_off_again(vllm: FakeScheduler) -> None:
    vllm.coordinator.caches_reset(emptied=True)
    attested(vllm)
    vllm.coordinator.caches_reset(emptied=True)
    assert vllm.coordinator.tier.off == RESET
    assert details(attested(vllm, resets=1)) == [RESET_AGAIN.detail]
    assert attested(vllm, resets=2)["tier_on"] is True
