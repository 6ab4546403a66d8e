"""The main promise: the engine is killed, and the session comes back, or the reason why not."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from sessiond.domain.tokens import common_prefix_tokens
from sessiond.testing.agent import Agent
from sessiond.testing.model import change_weights
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening

CHUNK_TOKENS = 128
TOKENS = 32


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def wait_for_no_engine(agent: Agent) -> None:
    """Wait until the kernel has let go of the killed engine's lock."""
    deadline_s = time.monotonic() + 10
    while agent.try_call("GET", "/v1/engines").json()["engines"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def own_model(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def test_a_killed_engine_loses_nothing_and_other_weights_load_nothing(
    stack: Stack, agent: Agent, own_model: Path
) -> None:
    left_before = shared_memory()
    stack.settings["SESSIOND_ENGINES"] = f"http://127.0.0.1:{stack.engine_port}"
    stack.start_daemon()
    stack.start_engine(own_model)
    agent.create_session()
    before = opening("the story", 2000)
    first = agent.ticketed_turn(before, tokens=100)
    messages = continued(before, first.text)
    salt = agent.ticket()["cache_salt"]
    reference = agent.turn(messages, tokens=TOKENS, cache_salt=salt)
    agent.suspend()

    stack.engine.kill()
    wait_for_no_engine(agent)
    no_engine = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/resume")
    state = agent.try_call("GET", f"/v1/sessions/{agent.session_id}").json()["state"]
    assert (no_engine.status_code, no_engine.json()["code"]) == (503, "no_engine")
    assert state == "suspended"

    stack.start_engine(own_model)
    resumed = agent.resume()
    turn = agent.ticketed_turn(messages, tokens=TOKENS)
    head = first.prompt_token_ids + first.token_ids
    common = common_prefix_tokens(head, turn.prompt_token_ids)
    assert resumed["outcome"] == "restored"
    assert turn.cached_tokens == common - common % CHUNK_TOKENS
    assert turn.token_ids == reference.token_ids

    stack.engine.kill()
    change_weights(own_model)
    stack.start_engine(own_model)
    probe = agent.try_call("GET", f"/v1/sessions/{agent.session_id}/probe").json()
    resumed = agent.resume()
    turn = agent.ticketed_turn(messages, tokens=TOKENS)
    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "weights_mismatch")
    assert [cause["reason"] for cause in probe["causes"]] == ["weights_mismatch"]
    assert turn.cached_tokens == 0
    # Right tokens for these weights: a suspend now must not mix them with the old snapshot.
    again = agent.suspend()["snapshot"]
    assert (again["generation"], again["shared_bytes"]) == (2, 0)

    stack.engine.stop()
    stack.start_plain_engine(own_model)
    fresh = agent.turn(messages, tokens=TOKENS, cache_salt="fresh")
    assert turn.token_ids == fresh.token_ids
    # A server without our connector is named as such.
    engines = agent.try_call("GET", "/v1/engines").json()
    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/ticket")
    assert [stranger["code"] for stranger in engines["strangers"]] == ["engine_without_connector"]
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_without_connector")
    stack.engine.stop()
    assert shared_memory() - left_before == set()
