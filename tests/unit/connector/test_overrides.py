"""Whatever of ours vLLM calls is guarded, and made to fail in some test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sessiond.connector import guard
from sessiond.connector.attest import TierState
from sessiond.connector.mover import protocol
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.testing import overrides
from sessiond.testing.fake_mover import FakeMovers
from sessiond.testing.fake_scheduler import FakeScheduler, tokens_of


@pytest.fixture(autouse=True)
def no_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "_injected", set())
    yield
    guard.failures.clear()


def test_every_guarded_function_is_made_to_fail_somewhere() -> None:
    injected = overrides.STORING + overrides.LOADING + overrides.RESETTING + overrides.ENDING
    assert overrides.guarded_functions() == {*injected, *overrides.NOT_INJECTED}
    assert not set(injected) & overrides.NOT_INJECTED.keys()


def test_every_override_is_guarded_or_says_why_not() -> None:
    assert overrides.unguarded_functions() == overrides.UNGUARDED.keys()


# What NOT_INJECTED names


def admitted(vllm: FakeScheduler) -> str:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    assert vllm.may_match(request)
    return request


def test_a_load_whose_answer_cannot_be_handled_has_failed(vllm: FakeScheduler) -> None:
    request = admitted(vllm)
    vllm.load(1, request, range(3))
    vllm.mover.end_load()
    guard.inject(["Coordinator._handled"])
    (done,) = vllm.done()
    assert (done.job_id, done.good_chunks, done.all_good) == (1, frozenset(), False)
    assert vllm.may_match(request)  # it does not wait for that job any more
    assert not vllm.coordinator.has_work()


def test_an_answer_that_makes_no_sense_ends_its_job(vllm: FakeScheduler) -> None:
    request = admitted(vllm)
    vllm.load(1, request, range(3))
    nonsense: Any = [[]]
    vllm.mover.answer(protocol.LoadDone(1, nonsense, [], 0.1, 1))
    (done,) = vllm.done()
    assert not done.all_good
    assert guard.failures["Coordinator._handled"] == 1


def test_a_store_whose_answer_cannot_be_handled_has_failed(vllm: FakeScheduler) -> None:
    head = tokens_of(3)
    vllm.take_turn(head)
    request = vllm.begin_suspend(head, 3)
    vllm.mover.open_suspend()
    assert vllm.may_match(request)
    vllm.store(1, request, range(3))
    vllm.mover.end_store()
    guard.inject(["Coordinator._handled"])
    (done,) = vllm.done()
    assert (done.job_id, done.all_good) == (1, False)
    assert not vllm.coordinator.has_work()


def test_jobs_that_cannot_be_waited_for_end_with_their_mover(
    vllm: FakeScheduler, movers: FakeMovers
) -> None:
    request = admitted(vllm)
    vllm.load(1, request, range(3))
    vllm.coordinator.end_jobs()
    assert movers.all[0].killed
    assert len(movers.all) == 2
    assert [done.job_id for done in vllm.done()] == [1]


def test_a_tier_that_is_off_offers_nothing_that_was_admitted(vllm: FakeScheduler) -> None:
    request = admitted(vllm)
    assert vllm.offered(request, range(3)) == [0, 1, 2]
    # As the connector does when turning it off in good order has failed.
    vllm.coordinator.tier.off = Cause(Reason.TIER_OFF)
    assert vllm.offered(request, range(3)) == []


def test_a_tier_goes_off_though_nobody_can_be_told(vllm: FakeScheduler) -> None:
    def refuse(_state: TierState) -> None:
        raise RuntimeError

    vllm.coordinator.tier.on_change = refuse
    with pytest.raises(RuntimeError):
        vllm.coordinator.turn_off(Cause(Reason.TIER_OFF))
    request = vllm.arrive(vllm.ticket(TicketOp.TURN, generation=1), tokens_of(3))
    assert vllm.mover.told(protocol.OpenLoad) == []
    assert vllm.may_match(request)
