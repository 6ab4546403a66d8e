"""A reset of the engine's caches in the middle of things, and an operator's word after it; the
last tests of the shared engine, since the snapshot tier stays off in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.overrides import RESETTING
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening

RESET = "/reset_prefix_cache?reset_external=true"


def test_a_reset_during_a_restore_turns_the_tier_off_and_the_engine_serves_on(
    stack: Stack, agent: Agent, evict: Callable[[], None]
) -> None:
    messages = opening(agent.session_id, 1500)
    agent.ticketed_turn(messages, tokens=8)
    agent.suspend()
    evict()
    stop = threading.Event()
    url = f"http://127.0.0.1:{stack.engine_port}{RESET}"

    def reset() -> None:
        while not stop.is_set():
            httpx.post(url, timeout=60)

    resetting = threading.Thread(target=reset)
    resetting.start()
    turn = agent.ticketed_turn(messages, tokens=8)
    stop.set()
    resetting.join()

    assert len(turn.token_ids) == 8
    served = agent.turn(opening("after the reset", 400), tokens=8, cache_salt="after")
    assert len(served.token_ids) == 8
    # More than a chunk of new tokens: what the snapshot has needs no tier.
    question = "What else does it do? " * 50
    agent.ticketed_turn(continued(messages, turn.text, question), tokens=8)
    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")
    assert answer.is_error, answer.text
    deadline_s = time.monotonic() + 20
    while not agent.try_call("GET", "/v1/engines").json()["engines"][0]["tier_off"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_an_operators_word_turns_it_on_again(stack: Stack, agent: Agent) -> None:
    def attest() -> httpx.Response:
        (engine,) = agent.try_call("GET", "/v1/engines").json()["engines"]
        return agent.try_call("POST", f"/v1/engines/{engine['engine_id']}/attest")

    def reset() -> None:
        httpx.post(f"http://127.0.0.1:{stack.engine_port}{RESET}", timeout=60).raise_for_status()
        deadline_s = time.monotonic() + 20
        while not agent.try_call("GET", "/v1/engines").json()["engines"][0]["attestable"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    reset()
    assert attest().status_code == httpx.codes.OK
    before = opening(agent.session_id, 900)
    first = agent.ticketed_turn(before, tokens=16)
    messages = continued(before, first.text)
    salt = agent.ticket()["cache_salt"]
    uninterrupted = agent.turn(messages, tokens=16, cache_salt=salt)
    stored = agent.suspend()["snapshot"]["tokens_restorable"]

    reset()
    off = agent.resume()
    assert (off["outcome"], off["reason"]) == ("recomputed", "tier_off")
    assert attest().json()["was_off"] == "the engine's caches were reset"
    on = agent.resume()

    assert (on["outcome"], on["disk_tokens"]) == ("restored", stored)
    assert agent.ticketed_turn(messages, tokens=16).token_ids == uninterrupted.token_ids


@pytest.mark.parametrize("name", RESETTING)
def test_a_fault_in_a_reset_leaves_the_tier_off_and_the_engine_alive(
    stack: Stack, agent: Agent, name: str
) -> None:
    faults = stack.folder / "faults"
    faults.write_text(name)

    httpx.post(f"http://127.0.0.1:{stack.engine_port}{RESET}", timeout=60).raise_for_status()

    faults.write_text("")
    assert f"{name} failed" in stack.engine.log_text()
    served = agent.ticketed_turn(opening(agent.session_id, 200), tokens=4)
    assert len(served.token_ids) == 4
    assert agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend").is_error
