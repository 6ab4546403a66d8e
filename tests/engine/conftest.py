"""One engine and one daemon for the whole ring: starting an engine takes half a minute.

The engine is small on purpose: its RAM tier holds 21 chunks, so that everything longer has to
be moved in rounds. vLLM's development endpoint clears VRAM between tests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessiond.domain.keys import KeyRing
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.model import build_model
from sessiond.testing.stack import Stack
from sessiond.testing.texts import opening

MODELS = Path(__file__).parents[2] / ".cache" / "models"
CHUNK_TOKENS = 128
CHUNK_BYTES = 2_949_120  # 128 tokens of the model: 30 layers x 3 heads x 64 x (K, V) x 2 bytes
RAM_CHUNKS = 21
ENGINE_OPTIONS = (
    "--allow-weight-updates",
    "--ram-tier-bytes",
    str(RAM_CHUNKS * CHUNK_BYTES),
    "--connector-setting",
    "hold_deadline_s=12",
    "--connector-setting",
    "plan_deadline_s=7",
    "--connector-setting",
    "job_deadline_s=5",
)
ENGINE_ENV = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="session")
def model() -> Path:
    return build_model(MODELS)


@pytest.fixture(scope="session")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    faults = folder / "faults"
    faults.touch()
    injected = ("--connector-setting", f"raise_in={json.dumps([f'@{faults}'])}")
    with Stack(folder) as running:
        running.start_daemon()
        running.start_engine(model, (*ENGINE_OPTIONS, *injected), ENGINE_ENV)
        yield running
        assert unexpected_failures(running.engine.log_text()) == 0


@pytest.fixture(scope="session")
def keys(stack: Stack) -> KeyRing:
    return KeyRing.from_server_key(load_server_key(stack.key_file, create=False))


@pytest.fixture(scope="session")
def store(stack: Stack, keys: KeyRing) -> Store:
    return Store.open(stack.store_root, keys)


_numbers = itertools.count()


@pytest.fixture
def evict(stack: Stack, agent: Agent) -> Callable[[], None]:
    """Put the session's KV out of VRAM and RAM: a stranger's chunks fill the RAM tier."""

    def run() -> None:
        name = f"stranger-{next(_numbers)}"
        agent.turn(opening(name, (RAM_CHUNKS + 4) * CHUNK_TOKENS), tokens=1, cache_salt=name)
        stack.clear_vram()

    return run


@pytest.fixture
def agent(stack: Stack) -> Iterator[Agent]:
    """An agent with a session of its own; VRAM holds nothing of others."""
    stack.clear_vram()
    fresh = Agent(f"agent-{next(_numbers)}", stack.daemon_port, stack.engine_port)
    fresh.create_session()
    yield fresh
    fresh.close()
    assert stack.engine.is_running()


def unexpected_failures(log: str) -> int:
    """Return how often our guard caught something that no test made fail on purpose."""
    return log.count(" failed (") - log.count("guard.InjectedFaultError:")
