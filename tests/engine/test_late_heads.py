"""What a turn left is stored, however late its engine's mover writes that down."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening

#: Less than an engine may take to say that its heads are written.
_LATE_S = 1.0


@contextmanager
def frozen_mover(stack: Stack) -> Iterator[None]:
    """Let the mover do nothing as long as the context lasts."""
    pid = stack.mover_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_suspend_right_after_a_turn_has_all_of_it(stack: Stack, agent: Agent) -> None:
    messages = opening(agent.session_id, 300)
    reply = agent.ticketed_turn(messages, tokens=8).text
    agent.suspend()
    longer = continued(messages, reply, opening("more", 300)[-1]["content"])
    with ThreadPoolExecutor() as threads:
        with frozen_mover(stack):
            turn = agent.ticketed_turn(longer, tokens=8)
            suspending = threads.submit(agent.suspend)
            time.sleep(_LATE_S)
            assert not suspending.done()
        told = suspending.result()
    kept_tokens = len(turn.prompt_token_ids) + len(turn.token_ids) - 1
    assert told["missing_tokens"] == 0
    assert told["snapshot"]["tokens_restorable"] == kept_tokens // 128 * 128


def test_a_drain_right_after_a_turn_has_all_of_it(stack: Stack, agent: Agent, store: Store) -> None:
    (engine,) = store.live_engines()
    path = f"/v1/engines/{engine.engine_id}"

    def drain() -> dict[str, Any]:
        told: dict[str, Any] = agent.try_call("POST", f"{path}/drain", {"deadline_s": 20}).json()
        return told

    drain()  # what other tests have left: of some, KV is gone
    try:
        with ThreadPoolExecutor() as threads:
            with frozen_mover(stack):
                agent.ticketed_turn(opening(agent.session_id, 300), tokens=8)
                assert store.read_heads(DEFAULT_TENANT, SessionId(agent.session_id)) == []
                draining = threads.submit(drain)
                time.sleep(_LATE_S)
                assert not draining.done()
            told = draining.result()
    finally:
        agent.try_call("POST", f"{path}/undrain", {})
    assert told["causes"] == []
    assert agent.session_id in [one["session_id"] for one in told["saved"]]
    assert agent.session_id not in [one["session_id"] for one in told["unsaved"]]
    assert agent.show()["state"] == "suspended"
