"""A mover that hangs or dies is replaced, and the engine serves on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack
from sessiond.testing.texts import opening


def wait_for_head(agent: Agent) -> None:
    """Wait until the mover has written what the turn left."""
    assert agent.show_when(lambda shown: shown["state"] == "active")["state"] == "active"


def wait_for_another_mover(stack: Stack, old: int) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            if stack.mover_pid() != old:
                return
        except ValueError:
            pass  # none, or two for a moment
        time.sleep(0.1)
    raise AssertionError("no other mover was started")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_suspend_without_mover_fails_honestly_and_the_next_one_works(
    stack: Stack, agent: Agent, number: signal.Signals
) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    wait_for_head(agent)
    old = stack.mover_pid()
    os.kill(old, number)

    failed = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")
    served = agent.turn(opening("someone else", 200), tokens=5, cache_salt="someone")
    wait_for_another_mover(stack, old)
    second = agent.suspend()

    if number is signal.SIGSTOP:
        assert failed.is_error
        assert not failed.json().get("snapshot")
    assert len(served.token_ids) == 5
    assert second["snapshot"]["generation"] == 1


def test_a_resume_with_a_hanging_mover_is_answered_in_bounded_time(
    stack: Stack, agent: Agent, evict: Callable[[], None]
) -> None:
    before = opening(agent.session_id, 700)
    cold = agent.ticketed_turn(before, tokens=10)
    warm = agent.turn(before, tokens=10, cache_salt=agent.ticket()["cache_salt"])
    agent.suspend()
    evict()
    old = stack.mover_pid()
    os.kill(old, signal.SIGSTOP)

    began_s = time.monotonic()
    resumed = agent.resume()
    elapsed_s = time.monotonic() - began_s

    assert resumed["outcome"] == "recomputed"
    assert resumed["reason"] in ("deadline", "mover_failed")
    assert elapsed_s < 40
    turn = agent.ticketed_turn(before, tokens=10)
    # Whether the fresh mover is there already decides; like is compared with like.
    assert turn.token_ids == (warm if turn.cached_tokens else cold).token_ids
    wait_for_another_mover(stack, old)
    assert agent.suspend()["missing_tokens"] == 0
