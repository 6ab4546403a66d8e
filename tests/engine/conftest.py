"""One engine and one daemon for the whole ring: starting an engine takes half a minute.

The engine is small on purpose: its RAM tier holds 21 chunks, so that everything longer has to
be moved in rounds, and its VRAM so little that requests can be made to preempt each other.
vLLM's development endpoint clears VRAM between tests.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessiond.domain.keys import KeyRing
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.model import build_model
from sessiond.testing.overrides import ENDING
from sessiond.testing.stack import Stack

MODELS = Path(__file__).parents[2] / ".cache" / "models"
CHUNK_TOKENS = 128
CHUNK_BYTES = 2_949_120  # 128 tokens of the model: 30 layers x 3 heads x 64 x (K, V) x 2 bytes
RAM_CHUNKS = 21
VRAM_BLOCKS = 52  # of one chunk each
ENGINE_OPTIONS = (
    "--max-model-len",
    "5632",
    "--num-gpu-blocks-override",
    str(VRAM_BLOCKS),
    "--allow-weight-updates",
    "--ram-tier-bytes",
    str(RAM_CHUNKS * CHUNK_BYTES),
    "--trust-request-chat-template",  # the model's own one renders no tools
    "--enable-auto-tool-choice",  # agent frameworks leave the choice to the model
    "--tool-call-parser",
    "hermes",
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


def start_engine(stack: Stack, model: Path) -> None:
    """Start the engine of the ring; its injected faults are in a file of the stack's folder."""
    injected = json.dumps([f"@{stack.folder / 'faults'}"])
    options = (*ENGINE_OPTIONS, "--connector-setting", f"raise_in={injected}")
    stack.start_engine(model, options, ENGINE_ENV)


@pytest.fixture(scope="session")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    faults = folder / "faults"
    faults.touch()
    with Stack(folder) as running:
        daemon = running.begin_daemon()
        start_engine(running, model)
        daemon.wait_ready()
        yield running
        faults.write_text(" ".join(ENDING))
        end_engine_core(running)
        log = running.engine.log_text()
        assert all(f"{name} failed" in log for name in ENDING)
        assert unexpected_failures(log) == 0


@pytest.fixture(scope="session")
def keys(stack: Stack) -> KeyRing:
    return KeyRing.from_server_key(load_server_key(stack.key_file, create=False))


@pytest.fixture(scope="session")
def store(stack: Stack, keys: KeyRing) -> Store:
    return Store.open(stack.store_root, keys)


_numbers = itertools.count()


@pytest.fixture(scope="session")
def stranger(stack: Stack) -> Iterator[Agent]:
    """An agent whose snapshot fills the RAM tier, to the last chunk."""
    other = Agent("stranger", stack.daemon_port, stack.engine_port)
    other.create_session()
    ticket = other.ticket()
    other.complete(
        range(100, 100 + RAM_CHUNKS * CHUNK_TOKENS + 1),
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )
    assert other.suspend()["snapshot"]["chunks"] == RAM_CHUNKS
    yield other
    other.close()


@pytest.fixture
def evict(stack: Stack, stranger: Agent) -> Callable[[], None]:
    """Put the session's KV out of VRAM and RAM: a stranger's fills the RAM tier, from disk."""

    def run() -> None:
        stack.clear_vram()
        assert stranger.resume()["tokens_restored"] == RAM_CHUNKS * CHUNK_TOKENS
        stack.clear_vram()

    return run


@pytest.fixture
def kill_engine(stack: Stack, model: Path) -> Callable[[], None]:
    """Kill the engine and start it anew; all that it had in VRAM and RAM is gone."""

    def run() -> None:
        assert unexpected_failures(stack.engine.log_text()) == 0
        stack.engine.kill()
        start_engine(stack, model)

    return run


@pytest.fixture
def new_agent(stack: Stack) -> Iterator[Callable[[], Agent]]:
    """Return an agent with a session of its own, each time."""
    with ExitStack() as closing:

        def make() -> Agent:
            fresh = Agent(f"agent-{next(_numbers)}", stack.daemon_port, stack.engine_port)
            closing.callback(fresh.close)
            fresh.create_session()
            return fresh

        yield make


@pytest.fixture
def agent(stack: Stack, new_agent: Callable[[], Agent]) -> Iterator[Agent]:
    """An agent with a session of its own; VRAM holds nothing of others."""
    stack.clear_vram()
    yield new_agent()
    assert stack.engine.is_running()


def end_engine_core(stack: Stack) -> None:
    """Let the engine's core end in good order: its API server would not wait for that."""
    pids = re.findall(r"EngineCore pid=(\d+)", stack.engine.log_text())
    os.kill(int(pids[0]), signal.SIGTERM)
    stack.engine.wait_end(60)


def unexpected_failures(log: str) -> int:
    """Return how often our guard caught something that no test made fail on purpose."""
    return log.count(" failed (") - log.count("guard.InjectedFaultError:")
