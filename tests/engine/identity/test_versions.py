"""What one tested vLLM version wrote is right in another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector.versions import vllm_version
from sessiond.testing.agent import Agent
from sessiond.testing.restarts import find_out, suspend_and_kill
from sessiond.testing.stack import Stack
from sessiond.testing.vllm_versions import OTHERS_VARIABLE, version_in

OPTIONS = ("--max-model-len", "2048", "--ram-tier-bytes", str(256 << 20))
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
OTHERS = os.environ.get(OTHERS_VARIABLE, "").split()

pytestmark = pytest.mark.skipif(not OTHERS, reason="make versions makes the other environments")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "stack") as running:
        running.start_daemon()
        yield running


@pytest.fixture
def agent(stack: Stack) -> Iterator[Agent]:
    made = Agent("traveller", stack.daemon_port, stack.engine_port)
    yield made
    made.close()


@pytest.mark.parametrize("python", OTHERS)
def test_a_snapshot_of_another_tested_version_is_restored(
    stack: Stack, agent: Agent, model: Path, python: str
) -> None:
    assert version_in(python) != vllm_version()
    stack.start_engine(model, OPTIONS, ENV, python)
    agent.create_session()
    suspended = suspend_and_kill(stack, agent)

    stack.start_engine(model, OPTIONS, ENV)
    probe = agent.try_call("GET", f"/v1/sessions/{agent.session_id}/probe").json()
    found = find_out(suspended)

    assert "vllm_version" in [mismatch["field"] for mismatch in probe["mismatches"]]
    assert (found.resumed["outcome"], found.resumed["reason"]) == ("restored", "")
    assert found.resumed["tokens_restored"] == suspended.stored_tokens
    # Exactly what the other version would have said, and what this one computes by itself.
    assert found.turn.token_ids == suspended.uninterrupted.token_ids
    assert found.agrees
