"""What vLLM answers to tickets, good and bad, and to requests without one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.keys import KeyRing, salt_hash
from sessiond.domain.tickets import TICKET_PARAM, Ticket, TicketOp, sign
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack
from sessiond.testing.texts import opening


@pytest.fixture
def ticket(agent: Agent, store: Store, keys: KeyRing) -> Ticket:
    (engine,) = store.live_engines()
    return Ticket(
        op=TicketOp.TURN,
        tenant=DEFAULT_TENANT,
        session=agent.session_id,
        engine_id=engine.engine_id,
        operation_id="op-test",
        generation=0,
        salt_hash=salt_hash(keys.cache_salt(DEFAULT_TENANT)),
        not_before_unix_s=int(time.time()),
        expires_unix_s=int(time.time()) + 60,
    )


def ask(agent: Agent, keys: KeyRing, text: str, salt: str | None = None) -> dict[str, Any]:
    answer = agent.complete(
        range(100, 140),
        cache_salt=salt or keys.cache_salt(DEFAULT_TENANT),
        kv_transfer_params={TICKET_PARAM: text},
    )
    assert len(answer["choices"]) == 1
    ours: dict[str, Any] = answer["kv_transfer_params"]["sessiond"]
    return ours


def test_a_good_ticket_is_answered(agent: Agent, keys: KeyRing, ticket: Ticket) -> None:
    ours = ask(agent, keys, sign(ticket, keys.ticket_key))

    assert ours["ok"]
    assert (ours["engine_id"], ours["op"]) == (ticket.engine_id, "turn")
    assert ours["split"]["prompt_tokens"] == 40


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_id": "0" * 32},
        {"expires_unix_s": 1000},
        {"salt_hash": "0" * 32},
    ],
)
def test_a_ticket_that_is_not_for_this_request_is_refused_and_the_request_served(
    agent: Agent, keys: KeyRing, ticket: Ticket, changes: dict[str, Any]
) -> None:
    ours = ask(agent, keys, sign(replace(ticket, **changes), keys.ticket_key))

    assert not ours["ok"]
    assert [cause["reason"] for cause in ours["causes"]] == ["ticket_invalid"]


@pytest.mark.parametrize("text", ["", "v1", "v1.a.b", "x" * 5000, "v1.e30.e30"])
def test_nonsense_for_a_ticket_is_refused_and_the_request_served(
    agent: Agent, keys: KeyRing, text: str
) -> None:
    ours = ask(agent, keys, text)

    assert not ours["ok"]


def test_a_ticket_signed_with_another_key_is_refused(
    agent: Agent, keys: KeyRing, ticket: Ticket
) -> None:
    ours = ask(agent, keys, sign(ticket, b"another key"))

    assert not ours["ok"]


def test_a_commit_without_a_suspend_is_answered_in_bounded_time(
    agent: Agent, keys: KeyRing, ticket: Ticket
) -> None:
    began_s = time.monotonic()

    ours = ask(agent, keys, sign(replace(ticket, op=TicketOp.COMMIT), keys.ticket_key))

    assert (ours["committed"], ours["ok"]) == (False, False)
    assert [cause["reason"] for cause in ours["causes"]] == ["deadline"]
    assert time.monotonic() - began_s < 40


def test_requests_without_a_ticket_cost_nothing_on_disk(
    agent: Agent, stack: Stack, store: Store
) -> None:
    before = set(store.root.rglob("*"))

    agent.turn(opening("untagged", 700), tokens=20, cache_salt="untagged")
    time.sleep(0.5)

    # The daemon may remove what other tests have left meanwhile.
    assert set(store.root.rglob("*")) - before == set()
    assert stack.engine.is_running()


def test_two_choices_of_one_turn_are_two_branches(
    agent: Agent, keys: KeyRing, ticket: Ticket
) -> None:
    answer = agent.complete(
        range(100, 340),
        n=2,
        temperature=1.0,
        max_tokens=20,
        cache_salt=keys.cache_salt(DEFAULT_TENANT),
        kv_transfer_params={TICKET_PARAM: sign(ticket, keys.ticket_key)},
    )

    assert len(answer["choices"]) == 2
    deadline_s = time.monotonic() + 5
    presence = shown_presence(agent)
    while presence["turns_in_flight"] and time.monotonic() < deadline_s:
        time.sleep(0.05)  # the file of the head lags a moment behind the answer
        presence = shown_presence(agent)
    assert presence["turns_in_flight"] == 0
    assert presence["head_tokens"] == 260


def shown_presence(agent: Agent) -> dict[str, Any]:
    shown = agent.try_call("GET", f"/v1/sessions/{agent.session_id}").json()
    return dict(shown["presence"])
