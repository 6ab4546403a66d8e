"""Chunks are found by their tokens and positions, whatever vLLM calls them."""

from __future__ import annotations

import time
from collections.abc import Callable

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.keys import KeyRing, salt_hash
from sessiond.domain.tickets import TICKET_PARAM, Ticket, TicketOp, sign
from sessiond.domain.tokens import whole_chunk_tokens
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.texts import opening

CHUNK_TOKENS = 128
OTHER_SALT = "of another salt key"


def test_a_request_with_another_salt_restores_all_the_same(
    agent: Agent, store: Store, keys: KeyRing, evict: Callable[[], None]
) -> None:
    messages = opening(agent.session_id, 900)
    agent.ticketed_turn(messages, tokens=10)
    reference = agent.turn(messages, tokens=16, cache_salt=agent.ticket()["cache_salt"])
    stored = agent.suspend()["snapshot"]["tokens_restorable"]
    evict()
    (engine,) = store.live_engines()
    now_s = int(time.time())
    ticket = Ticket(
        op=TicketOp.TURN,
        tenant=DEFAULT_TENANT,
        session=agent.session_id,
        engine_id=engine.engine_id,
        operation_id="op-test",
        generation=1,
        restorable_tokens=stored,
        salt_hash=salt_hash(OTHER_SALT),
        not_before_unix_s=now_s,
        expires_unix_s=now_s + 60,
    )

    turn = agent.turn(
        messages,
        tokens=16,
        cache_salt=OTHER_SALT,
        kv_transfer_params={TICKET_PARAM: sign(ticket, keys.ticket_key)},
    )

    prompt_chunks = whole_chunk_tokens(len(turn.prompt_token_ids) - 1, CHUNK_TOKENS)
    assert turn.cached_tokens == min(stored, prompt_chunks) > 0
    assert turn.token_ids == reference.token_ids
