"""A suspend never cuts into a turn."""

from __future__ import annotations

import threading
import time

import httpx

from sessiond.testing.agent import Agent, Turn
from sessiond.testing.texts import opening


def test_a_suspend_during_a_turn_is_refused_and_the_turn_goes_on(agent: Agent) -> None:
    turns: list[Turn] = []
    messages = opening(agent.session_id, 700)
    long_turn = threading.Thread(
        target=lambda: turns.append(agent.ticketed_turn(messages, tokens=120))
    )
    long_turn.start()
    path = f"/v1/sessions/{agent.session_id}"
    deadline_s = time.monotonic() + 60
    while agent.try_call("GET", path).json()["state"] != "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)

    refused = agent.try_call("POST", f"{path}/suspend")
    long_turn.join()

    assert refused.status_code == httpx.codes.CONFLICT
    assert refused.json()["code"] == "turn_in_flight"
    assert len(turns[0].token_ids) == 120
    assert agent.suspend()["missing_tokens"] == 0
    assert agent.try_call("GET", path).json()["state"] == "suspended"
