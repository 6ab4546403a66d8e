"""The main promise: the engine is killed, and the session comes back, or the reason why not."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.domain.tokens import common_prefix_tokens
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.model import change_weights
from sessiond.testing.stack import Stack
from sessiond.testing.texts import continued, opening

CHUNK_TOKENS = 128
TOKENS = 32


def shared_memory() -> set[str]:
    """Return what lies in shared memory, PostgreSQL's aside: other tests run beside this one."""
    names = {path.name for path in Path("/dev/shm").iterdir()}
    return {name for name in names if not name.startswith("PostgreSQL.")}


def left_since(before: set[str]) -> set[str]:
    """Return what is in shared memory since then and stays: other tests' files come and go."""
    deadline_s = time.monotonic() + 60
    left = shared_memory() - before
    while left and time.monotonic() < deadline_s:
        time.sleep(0.2)
        left &= shared_memory()
    return left


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The engines' temporary folder: theirs alone, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def left_in(temporary: Path) -> Path:
    """Return the one folder that the engines left or use, caches aside."""
    (path,) = (path for path in temporary.iterdir() if not path.name.startswith("torchinductor_"))
    return path


def wait_for_no_engine(agent: Agent) -> None:
    """Wait until the kernel has let go of the killed engine's lock."""
    deadline_s = time.monotonic() + 60
    while agent.try_call("GET", "/v1/engines").json()["engines"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def own_model(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def require_no_engine(agent: Agent) -> None:
    wait_for_no_engine(agent)
    no_engine = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/resume")
    assert (no_engine.status_code, no_engine.json()["code"]) == (503, "no_engine")
    state = agent.try_call("GET", f"/v1/sessions/{agent.session_id}").json()["state"]
    assert state == "suspended"


def restored_tokens(first: Turn, turn: Turn) -> int:
    """Return how much of a turn's prompt the turn before it can have left."""
    common = common_prefix_tokens(first.prompt_token_ids + first.token_ids, turn.prompt_token_ids)
    return common - common % CHUNK_TOKENS


def test_a_killed_engine_loses_nothing_and_other_weights_load_nothing(
    stack: Stack, agent: Agent, own_model: Path, temporary: Path
) -> None:
    left_before = shared_memory()
    env = {"TMPDIR": str(temporary)}
    stack.settings["SESSIOND_ENGINES"] = f"http://127.0.0.1:{stack.engine_port}"
    stack.start_daemon()

    # Weights A: the prompt is computed and suspended.
    stack.start_engine(own_model, env=env)
    agent.create_session()
    before = opening("the story", 2000)
    with_a = agent.ticketed_turn(before, tokens=TOKENS)
    agent.suspend()
    stack.engine.kill()
    require_no_engine(agent)
    of_the_killed = left_in(temporary)

    # Weights B: nothing of A's is loaded or shared; the same prompt is suspended once more.
    change_weights(own_model, 0.5)
    stack.start_engine(own_model, env=env)
    probe = agent.try_call("GET", f"/v1/sessions/{agent.session_id}/probe").json()
    resumed = agent.resume()
    assert left_in(temporary) != of_the_killed
    assert not of_the_killed.exists()
    with_b = agent.ticketed_turn(before, tokens=TOKENS)
    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "weights_mismatch")
    assert [cause["reason"] for cause in probe["causes"]] == ["weights_mismatch"]
    assert with_b.cached_tokens == 0
    assert with_b.token_ids != with_a.token_ids
    messages = continued(before, with_b.text)
    salt = agent.ticket()["cache_salt"]
    reference = agent.turn(messages, tokens=TOKENS, cache_salt=salt)
    again = agent.suspend()["snapshot"]
    assert (again["generation"], again["shared_bytes"]) == (2, 0)
    stack.engine.kill()
    require_no_engine(agent)

    # B once more: its own snapshot comes back, and with it the tokens of the uninterrupted run.
    stack.start_engine(own_model, env=env)
    resumed = agent.resume()
    turn = agent.ticketed_turn(messages, tokens=TOKENS)
    assert (resumed["outcome"], resumed["generation"]) == ("restored", 2)
    assert turn.cached_tokens == restored_tokens(with_b, turn)
    assert turn.token_ids == reference.token_ids
    stack.engine.stop()

    # vLLM without us: right tokens for these weights, and it is named as a stranger.
    stack.start_plain_engine(own_model)
    fresh = agent.turn(before, tokens=TOKENS, cache_salt="fresh")
    assert with_b.token_ids == fresh.token_ids
    engines = agent.try_call("GET", "/v1/engines").json()
    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/ticket")
    assert [stranger["code"] for stranger in engines["strangers"]] == ["engine_without_connector"]
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_without_connector")
    stack.engine.stop()
    assert left_since(left_before) == set()
