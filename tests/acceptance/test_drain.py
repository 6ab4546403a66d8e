"""Scale to zero and back: an engine is told to stop, and another one goes on with its sessions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.testing.agent import Agent, Turn
from sessiond.testing.restarts import CHUNK_TOKENS
from sessiond.testing.stack import Stack
from sessiond.testing.texts import Messages, continued, opening, real_text

PROMPT_TOKENS = 330
TOKENS = 12


@pytest.fixture
def other(stack: Stack) -> Iterator[Agent]:
    second = Agent("agent-2", stack.daemon_port, stack.engine_port)
    yield second
    second.close()


@pytest.fixture
def fork(stack: Stack) -> Iterator[Agent]:
    third = Agent("fork", stack.daemon_port, stack.engine_port)
    yield third
    third.close()


def uninterrupted(agent: Agent, messages: Messages) -> Turn:
    """Return the agent's next turn, as it is in the engine that has its KV."""
    return agent.turn(messages, tokens=TOKENS, cache_salt=agent.ticket()["cache_salt"])


def wait_for_no_engine(agent: Agent) -> None:
    """Wait until the last of vLLM's processes has ended: the first one does not wait for it."""
    deadline_s = time.monotonic() + 60
    while agent.try_call("GET", "/v1/engines").json()["engines"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def require_goes_on(agent: Agent, messages: Messages, expected: Turn) -> None:
    """Compare the session's next turn with the one that was not interrupted."""
    turn = agent.ticketed_turn(messages, tokens=TOKENS)
    assert turn.token_ids == expected.token_ids
    assert turn.cached_tokens == expected.cached_tokens


def test_an_engine_that_is_stopped_leaves_its_sessions_to_the_next(
    stack: Stack, agent: Agent, other: Agent, fork: Agent, model: Path
) -> None:
    stack.settings |= {
        "SESSIOND_URL": f"http://127.0.0.1:{stack.daemon_port}",
        "SESSIOND_DRAIN_DEADLINE_S": "120",
    }
    stack.start_daemon()
    stack.start_engine(model)

    # In the evening: one session is forked, and both go on; nothing of that is stored yet.
    agent.create_session()
    begun = opening("the evening", PROMPT_TOKENS)
    first = agent.ticketed_turn(begun, tokens=TOKENS)
    agent.suspend()
    made = agent.try_call("POST", "/v1/sessions/agent-1/fork", {"session_id": "fork"})
    assert (made.status_code, made.json()["snapshot"]["new_bytes"]) == (201, 0)
    # By more than a chunk, so that the fork's snapshot has only a part of it.
    second_messages = continued(begun, first.text, f"And this?\n{real_text(1200)}")
    second = agent.ticketed_turn(second_messages, tokens=TOKENS)
    other.create_session()
    other_begun = opening("another evening", PROMPT_TOKENS)
    other_first = other.ticketed_turn(other_begun, tokens=TOKENS)
    third_messages = continued(second_messages, second.text)
    other_messages = continued(other_begun, other_first.text)
    fork_messages = continued(begun, first.text, "What is missing in it?")
    third = uninterrupted(agent, third_messages)
    fork_second = uninterrupted(agent, fork_messages)
    other_second = uninterrupted(other, other_messages)
    assert min(third.cached_tokens, other_second.cached_tokens) >= 2 * CHUNK_TOKENS

    # The engine is told to stop: its sessions are stored first.
    engine = stack.engine
    os.kill(engine.pid, signal.SIGTERM)
    engine.wait_end()
    assert "drained: 2 sessions stored, 0 not" in engine.log_text()
    wait_for_no_engine(agent)
    assert [one.show()["state"] for one in (agent, other, fork)] == ["suspended"] * 3

    # In the morning: another engine, and all three go on as if nothing had been.
    stack.start_engine(model)
    # The fork first: what it brings back is its source's, too, and would be warm after it.
    resumed = [one.resume() for one in (fork, agent, other)]
    assert [(one["outcome"], one["causes"]) for one in resumed] == [("restored", [])] * 3
    require_goes_on(fork, fork_messages, fork_second)
    require_goes_on(agent, third_messages, third)
    require_goes_on(other, other_messages, other_second)
