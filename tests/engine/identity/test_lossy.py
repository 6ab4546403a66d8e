"""KV that is stored with loss on purpose: told, marked, and no other engine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening

OPTIONS = ("--max-model-len", "2048", "--ram-tier-bytes", str(64 << 20))
LOSSY = (*OPTIONS, "--connector-setting", "lossy=fp8")
PROMPT_TOKENS = 500


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as stack:
        stack.start_daemon()
        yield stack


@pytest.fixture
def agent(stack: Stack) -> Iterator[Agent]:
    agent = Agent("agent", stack.daemon_port, stack.engine_port)
    agent.create_session()
    yield agent
    agent.close()


def test_lossy_kv_comes_back_marked_and_in_no_engine_that_did_not_ask(
    stack: Stack, agent: Agent, model: Path
) -> None:
    stack.start_engine(model, LOSSY)
    before = opening("agent", PROMPT_TOKENS)
    first = agent.ticketed_turn(before, tokens=16)
    messages = continued(before, first.text)
    snapshot = agent.suspend()["snapshot"]
    lossy = snapshot["lossy"]
    assert lossy["way"] == "fp8"
    # K and V are told apart: of a real model, they are of other sizes, and so are their errors.
    assert {name: 0.02 < one["rms"] < 0.03 for name, one in lossy["errors"].items()} == {
        "k": True,
        "v": True,
    }
    assert lossy["errors"]["k"] != lossy["errors"]["v"]
    assert snapshot["stored_bytes"] < snapshot["raw_bytes"] / 2

    stack.engine.kill()
    stack.start_engine(model, LOSSY)
    resumed = agent.resume()
    assert (resumed["outcome"], resumed["lossy"]) == ("restored", lossy)
    assert agent.ticketed_turn(messages, tokens=160).cached_tokens > 0  # more than a chunk
    again = agent.suspend()["snapshot"]
    assert again["generation"] == snapshot["generation"] + 1
    assert again["lossy"]["errors"].keys() == {"k", "v"}

    stack.engine.kill()
    stack.start_engine(model, OPTIONS)
    refused = agent.resume()
    assert (refused["outcome"], refused["reason"]) == ("recomputed", "lossy_mismatch")
    turn = agent.ticketed_turn(messages, tokens=16)
    assert turn.cached_tokens == 0
    fresh = agent.turn(messages, tokens=16, cache_salt="nobody")
    assert turn.token_ids == fresh.token_ids
