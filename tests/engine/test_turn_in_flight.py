"""A suspend never cuts into a turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from sessiond.testing.agent import Agent, ChatMessages, Turn
from sessiond.testing.texts import continued, opening


@contextmanager
def long_turn(agent: Agent, messages: ChatMessages) -> Iterator[Future[Turn]]:
    """Let a turn of 120 tokens run; it has ended after the context."""
    with ThreadPoolExecutor() as threads:
        turn = threads.submit(agent.ticketed_turn, messages, tokens=120)
        deadline_s = time.monotonic() + 60
        while agent.show()["state"] != "running":
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield turn


def test_a_suspend_during_a_turn_is_refused_and_the_turn_goes_on(agent: Agent) -> None:
    path = f"/v1/sessions/{agent.session_id}"
    with long_turn(agent, opening(agent.session_id, 700)) as turn:
        refused = agent.try_call("POST", f"{path}/suspend")

    assert refused.status_code == httpx.codes.CONFLICT
    assert refused.json()["code"] == "turn_in_flight"
    assert len(turn.result().token_ids) == 120
    assert agent.suspend()["missing_tokens"] == 0
    assert agent.try_call("GET", path).json()["state"] == "suspended"


def test_a_turn_that_outlives_its_session_is_no_turn_of_the_next_one(agent: Agent) -> None:
    path = f"/v1/sessions/{agent.session_id}"
    messages = opening("the next one", 300)
    with long_turn(agent, opening(agent.session_id, 700)) as turn:
        assert agent.try_call("DELETE", path).is_success
        agent.create_session()
        first = agent.ticketed_turn(messages, tokens=8)
        assert not turn.done()
    assert len(turn.result().token_ids) == 120
    told = agent.suspend()
    kept_tokens = len(first.prompt_token_ids) + len(first.token_ids) - 1
    assert told["snapshot"]["tokens_restorable"] == kept_tokens // 128 * 128
    last = agent.ticketed_turn(continued(messages, first.text, "And now?"), tokens=8)
    assert last.cached_tokens >= told["snapshot"]["tokens_restorable"]
