"""Requests with LoRA adapters: kept and loaded only with the weights that their ticket names."""

from __future__ import annotations

from typing import Any

import pytest

from sessiond.connector.mover import protocol
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.tickets import TicketOp
from sessiond.domain.tokens import TokenIds, head_digest, token_ids
from sessiond.testing.fake_scheduler import FakeScheduler, tokens_of

POET = ServedAdapter("poet", digest="p" * 64)
SCRIBE = ServedAdapter("scribe", digest="s" * 64)
CHANGED = ServedAdapter("poet", unproven="its files changed")


def causes(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(c["reason"], c.get("stored"), c.get("live")) for c in answer["causes"]]


def turn(
    vllm: FakeScheduler,
    adapter: ServedAdapter | None,
    digest: str,
    tokens: TokenIds[int] | None = None,
) -> dict[str, Any]:
    """Take a turn with *adapter*, on a ticket for the one with *digest*."""
    prompt = tokens_of(3) if tokens is None else tokens
    request = vllm.arrive(vllm.ticket(adapter_digest=digest), prompt, adapter=adapter)
    return vllm.finish(request)


def suspend(vllm: FakeScheduler, adapter: ServedAdapter | None, digest: str) -> str:
    head = tokens_of(3) + token_ids([9])
    ticket = vllm.ticket(
        TicketOp.SUSPEND,
        generation=1,
        head_digest=head_digest(head),
        head_tokens=len(head),
        adapter_digest=digest,
    )
    return vllm.arrive(ticket, tokens_of(3), adapter=adapter)


def test_a_turn_leaves_a_branch_of_its_adapter(vllm: FakeScheduler) -> None:
    assert turn(vllm, POET, POET.digest)["ok"]
    (branch,) = vllm.published().branches
    assert (branch["adapter_digest"], branch["adapter_name"]) == (POET.digest, "poet")
    assert turn(vllm, None, "")["ok"]
    assert [b["adapter_digest"] for b in vllm.published().branches] == [POET.digest, ""]


def test_the_mover_is_asked_for_the_snapshot_of_that_adapter(vllm: FakeScheduler) -> None:
    vllm.arrive(vllm.ticket(generation=2, adapter_digest=POET.digest), tokens_of(3), adapter=POET)
    (asked,) = vllm.mover.told(protocol.OpenLoad)
    assert asked.adapter_digest == POET.digest


def test_equal_tokens_of_two_adapters_are_stored_as_what_computed_them(
    vllm: FakeScheduler,
) -> None:
    for adapter in (None, POET):
        turn(vllm, adapter, adapter.digest if adapter else "")
    for adapter in (None, POET, SCRIBE):
        suspend(vllm, adapter, adapter.digest if adapter else "")
    asked = vllm.mover.told(protocol.OpenSuspend)
    assert [each.adapter_digest for each in asked] == ["", POET.digest]  # and none of SCRIBE's


def test_a_suspend_stores_it_as_that_adapters(vllm: FakeScheduler) -> None:
    turn(vllm, POET, POET.digest)
    suspend(vllm, POET, POET.digest)
    (asked,) = vllm.mover.told(protocol.OpenSuspend)
    assert asked.adapter_digest == POET.digest


@pytest.mark.parametrize(
    ("adapter", "digest"),
    [(POET, ""), (POET, SCRIBE.digest), (SCRIBE, POET.digest), (None, POET.digest)],
)
def test_a_ticket_for_other_weights_is_refused_with_both_digests(
    vllm: FakeScheduler, adapter: ServedAdapter | None, digest: str
) -> None:
    answer = turn(vllm, adapter, digest)
    live = adapter.digest if adapter else None
    assert not answer["ok"]
    assert causes(answer) == [("ticket_for_another_model", digest or None, live)]
    assert "Ask for a ticket" in answer["causes"][0]["hint"]
    assert vllm.published().branches == []


@pytest.mark.parametrize("digest", ["", POET.digest])
def test_an_unproven_adapter_is_served_and_not_kept(vllm: FakeScheduler, digest: str) -> None:
    answer = turn(vllm, CHANGED, digest)
    (cause,) = answer["causes"]
    assert (answer["ok"], cause["reason"]) == (False, "adapter_unproven")
    assert "'poet': its files changed" in cause["detail"]
    assert "restart the engine" in cause["hint"]
    head = vllm.published()
    assert (head.branches, head.unkept, head.turns_in_flight) == ([], "adapter_unproven", 0)
    assert vllm.mover.told(protocol.OpenLoad) == []


def test_after_such_a_turn_the_session_cannot_be_suspended_as_it_was(vllm: FakeScheduler) -> None:
    turn(vllm, POET, POET.digest)
    turn(vllm, CHANGED, POET.digest, tokens_of(4))
    assert vllm.published().unkept == "adapter_unproven"
    suspend(vllm, POET, POET.digest)
    commit = vllm.finish(vllm.commit())
    assert causes(commit) == [("adapter_unproven", None, None)]
    assert "'poet'" in commit["causes"][0]["detail"]


def test_a_side_call_that_is_not_kept_leaves_the_conversation_alone(vllm: FakeScheduler) -> None:
    turn(vllm, POET, POET.digest)
    turn(vllm, CHANGED, "", tokens_of(1, first=1000))
    assert vllm.published().unkept == ""
    suspend(vllm, POET, POET.digest)
    assert vllm.mover.told(protocol.OpenSuspend)


@pytest.mark.parametrize(
    ("adapter", "reason"), [(CHANGED, "adapter_unproven"), (SCRIBE, "adapter_mismatch")]
)
def test_what_was_computed_before_a_change_is_not_stored(
    vllm: FakeScheduler, adapter: ServedAdapter, reason: str
) -> None:
    turn(vllm, POET, POET.digest)
    request = suspend(vllm, adapter, POET.digest)
    assert not vllm.may_match(request, 3 * 4)  # held: nothing is computed for it
    commit = vllm.finish(vllm.commit())
    assert (commit["committed"], commit["causes"][0]["reason"]) == (False, reason)
    assert vllm.mover.told(protocol.OpenSuspend) == []


@pytest.mark.parametrize(
    ("adapter", "reason"), [(CHANGED, "adapter_unproven"), (None, "adapter_mismatch")]
)
def test_nothing_is_brought_in_for_other_weights(
    vllm: FakeScheduler, adapter: ServedAdapter | None, reason: str
) -> None:
    ticket = vllm.ticket(TicketOp.RESUME, generation=1, adapter_digest=POET.digest)
    request = vllm.arrive(ticket, tokens_of(3), adapter=adapter)
    # Not even what VRAM has counts: nobody knows which weights computed that.
    assert not vllm.may_match(request, 3 * 4)
    outcome = vllm.finish(vllm.outcome())
    assert (outcome["loadable_tokens"], outcome["causes"][0]["reason"]) == (0, reason)
    assert vllm.mover.told(protocol.OpenLoad) == []
