"""An exception in any of our overrides costs a snapshot or a reuse, never the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.overrides import LOADING, STORING
from sessiond.testing.stack import Stack
from sessiond.testing.texts import opening


@pytest.fixture
def fault(stack: Stack) -> Iterator[Callable[[str], None]]:
    """Make a guarded function raise until the test ends."""
    file: Path = stack.folder / "faults"

    def inject(name: str) -> None:
        file.write_text(name)

    yield inject
    inject("")


@pytest.mark.parametrize("name", STORING)
def test_a_fault_while_storing_costs_at_most_the_snapshot(
    agent: Agent, stack: Stack, fault: Callable[[str], None], name: str
) -> None:
    fault(name)
    messages = opening(agent.session_id, 400)
    turn = agent.ticketed_turn(messages, tokens=8)
    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")
    fault("")

    assert len(turn.token_ids) == 8
    assert answer.is_success or answer.json()["code"]
    assert f"{name} failed" in stack.engine.log_text()
    again = agent.ticketed_turn(opening(f"{agent.session_id} again", 400), tokens=8)
    assert len(again.token_ids) == 8
    assert agent.suspend()["missing_tokens"] == 0


@pytest.mark.parametrize("name", LOADING)
def test_a_fault_while_loading_costs_at_most_the_reuse(
    agent: Agent,
    stack: Stack,
    fault: Callable[[str], None],
    evict: Callable[[], None],
    name: str,
) -> None:
    messages = opening(agent.session_id, 400)
    cold = agent.ticketed_turn(messages, tokens=8)
    warm = agent.turn(messages, tokens=8, cache_salt=agent.ticket()["cache_salt"])
    agent.suspend()
    evict()
    fault(name)

    turn = agent.ticketed_turn(messages, tokens=8)
    fault("")

    assert turn.token_ids == (warm if turn.cached_tokens else cold).token_ids
    assert f"{name} failed" in stack.engine.log_text()
    again = agent.ticketed_turn(messages, tokens=8)
    assert again.token_ids == warm.token_ids
