"""Weights that change in place, by the engine's own endpoints (design §3, rule 13).

Neither ``reload_weights`` nor ``update_weights`` reaches a connector, so an engine that offers
them keeps nothing unless its operator allows it; sleep, pause and resets turn the tier off.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.keys import KeyRing
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.identity_report import IdentityReport
from sessiond.testing.model import change_weights
from sessiond.testing.model_changes import link_checkpoint
from sessiond.testing.stack import Stack
from sessiond.testing.texts import Messages, continued, opening

OPTIONS = ("--max-model-len", "2048", "--ram-tier-bytes", str(64 << 20))
ENV = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
RESET = "/reset_prefix_cache?reset_external=true"
PROMPT_TOKENS = 500
#: Of a suspend or resume that nobody answers.
DEADLINE_S = 6.0
_PATIENCE_S = 60.0


class Rig(ExitStack):
    """An engine with development mode, whose endpoints are called by name."""

    def __init__(self, folder: Path, pristine: Path) -> None:
        super().__init__()
        deadlines = ("SESSIOND_SUSPEND_DEADLINE_S", "SESSIOND_RESUME_DEADLINE_S")
        self.model = link_checkpoint(pristine, folder / "model")
        self.other = link_checkpoint(pristine, folder / "other")
        change_weights(self.other, 0.5)
        self.stack = Stack(folder / "stack", dict.fromkeys(deadlines, str(DEADLINE_S)))
        self.enter_context(self.stack)

    def start(self, *options: str) -> None:
        """Start the daemon and the engine."""
        self.stack.start_daemon()
        self.stack.start_engine(self.model, (*OPTIONS, *options), ENV)

    def agent(self, name: str) -> Agent:
        """Return an agent with a session."""
        agent = Agent(name, self.stack.daemon_port, self.stack.engine_port)
        self.callback(agent.close)
        agent.create_session()
        return agent

    def post(self, path: str, body: object = None) -> None:
        """Call the engine."""
        url = f"http://127.0.0.1:{self.stack.engine_port}{path}"
        httpx.post(url, json=body, timeout=_PATIENCE_S).raise_for_status()

    def reload(self, model: Path) -> None:
        """Put other weights into the running engine; no hook of ours hears of it."""
        kwargs = {"weights_path": str(model)}
        self.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})

    @property
    def engine(self) -> dict[str, Any]:
        """What sessiond tells of the engine."""
        (engine,) = self.daemon("GET", "/v1/engines").json()["engines"]
        return dict(engine)

    def daemon(self, method: str, path: str) -> httpx.Response:
        """Call sessiond."""
        url = f"http://127.0.0.1:{self.stack.daemon_port}{path}"
        return httpx.request(method, url, timeout=_PATIENCE_S)

    def attest(self) -> httpx.Response:
        """Say that the weights are those of the files."""
        return self.daemon("POST", f"/v1/engines/{self.engine['engine_id']}/attest")

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that files tell a moment late."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def store(self) -> Store:
        """What lies on disk."""
        key = load_server_key(self.stack.key_file, create=False)
        return Store.open(self.stack.store_root, KeyRing.from_server_key(key))


# Not allowed: nothing is ever kept


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A copy of the checkpoint: whoever links to a file changes what stat tells of it."""
    return shutil.copytree(model, tmp_path_factory.mktemp("pristine") / "model")


def test_where_weights_may_change_nothing_is_kept(tmp_path: Path, pristine: Path) -> None:
    with Rig(tmp_path, pristine) as rig:
        rig.start()
        rig.wait_until(lambda: "development mode" in rig.engine["tier_off"])
        assert not rig.engine["attestable"]
        agent = rig.agent("agent")
        messages = opening("agent", PROMPT_TOKENS)
        turn = agent.ticketed_turn(messages, tokens=8)
        assert len(turn.token_ids) == 8

        refused = agent.try_call("POST", "/v1/sessions/agent/suspend")
        assert (refused.status_code, refused.json()["code"]) == (503, "tier_off")
        assert "development mode" in refused.json()["detail"]
        rig.reload(rig.other)
        rig.post(RESET)
        changed = agent.ticketed_turn(continued(messages, turn.text), tokens=8)
        assert len(changed.token_ids) == 8
        assert agent.try_call("POST", "/v1/sessions/agent/suspend").json()["code"] == "tier_off"
        assert rig.attest().json()["code"] == "attestation_refused"
        assert "development mode" in rig.engine["tier_off"]

        assert list((rig.stack.store_root / "segments").rglob("*.seg")) == []
        assert rig.stack.engine.is_running()


# Allowed: a reset turns the tier off, and an operator's word turns it on again


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rig"), pristine) as rig:
        rig.start("--allow-weight-updates")
        rig.wait_until(lambda: not rig.engine["tier_off"])
        yield rig


@pytest.fixture
def on(rig: Rig) -> Rig:
    """The engine with its tier on, whatever a test before did to it."""
    assert rig.attest().status_code == httpx.codes.OK
    return rig


class Kept:
    """A session that was suspended before anything happened to the engine."""

    def __init__(self, rig: Rig, name: str) -> None:
        before = opening(name, PROMPT_TOKENS)
        self.agent = rig.agent(name)
        first = self.agent.ticketed_turn(before, tokens=16)
        self.messages: Messages = continued(before, first.text)
        self.uninterrupted = self.fresh(self.agent.ticket()["cache_salt"])
        self.stored_tokens = self.agent.suspend()["snapshot"]["tokens_restorable"]

    def fresh(self, salt: str = "nobody") -> Turn:
        """Take the next turn without the session."""
        return self.agent.turn(self.messages, tokens=16, cache_salt=salt)

    def next_turn(self) -> Turn:
        """Take the session's next turn."""
        return self.agent.ticketed_turn(self.messages, tokens=16)

    def require_restored(self) -> None:
        """Resume it: everything comes from disk, and the tokens are the right ones."""
        resumed = self.agent.resume()
        assert (resumed["outcome"], resumed["disk_tokens"]) == ("restored", self.stored_tokens)
        turn = self.next_turn()
        assert turn.cached_tokens > 0
        assert turn.token_ids == self.uninterrupted.token_ids


def test_other_weights_never_meet_kv_of_before(on: Rig, report: IdentityReport) -> None:
    kept = Kept(on, "kept")
    on.post("/pause?mode=wait")
    on.reload(on.other)
    on.post("/resume")
    on.wait_until(lambda: on.engine["attestable"])

    resumed = kept.agent.resume()
    turn, fresh = kept.next_turn(), kept.fresh("other weights")

    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "tier_off")
    assert turn.token_ids == fresh.token_ids != kept.uninterrupted.token_ids
    report.field(
        "weights_in_place",
        outcome=resumed["outcome"],
        reason=resumed["reason"],
        output_matches_fresh_engine=turn.token_ids == fresh.token_ids,
    )
    refused = kept.agent.try_call("POST", "/v1/sessions/kept/suspend")
    assert refused.json().get("code") == "tier_off" or refused.json()["rounds"] == 0
    # The files' weights again, and what the others computed is still in VRAM.
    on.reload(on.model)
    done = on.attest()
    assert done.json()["was_off"] == "the engine's caches were reset"
    kept.require_restored()


def test_a_suspend_in_flight_during_a_reset_is_not_committed(on: Rig) -> None:
    agent = on.agent("held")
    agent.ticketed_turn(opening("held", PROMPT_TOKENS), tokens=8)
    on.wait_until(lambda: on.daemon("GET", "/v1/sessions/held").json()["state"] == "active")
    mover = on.stack.mover_pid()
    os.kill(mover, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        try:
            suspending = pool.submit(agent.try_call, "POST", "/v1/sessions/held/suspend")
            time.sleep(1.0)
            on.post(f"{RESET}&reset_running_requests=true")
        finally:
            os.kill(mover, signal.SIGCONT)
        answer = suspending.result()
    assert answer.json()["code"] == "tier_off"
    assert on.attest().status_code == httpx.codes.OK
    assert on.store().generations(DEFAULT_TENANT, SessionId("held")) == []
    agent.ticketed_turn(opening("held", PROMPT_TOKENS), tokens=8)
    assert agent.suspend()["snapshot"]["generation"] == 1


def test_a_reset_that_leaves_kv_is_followed_by_one_that_does_not(on: Rig) -> None:
    talking = on.agent("talking")
    messages = opening("talking", PROMPT_TOKENS)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(talking.ticketed_turn, messages, tokens=400)
        on.wait_until(lambda: on.daemon("GET", "/v1/sessions/talking").json()["state"] == "running")
        on.post(RESET)  # vLLM keeps the KV of what runs
        on.wait_until(lambda: on.engine["attestable"])
        before = on.engine["resets"]
        assert on.attest().status_code == httpx.codes.OK
        assert on.engine["resets"] == before + 1
        assert not running.done()
        assert len(running.result().token_ids) == 400
    assert talking.suspend()["snapshot"]["tokens_restorable"] > PROMPT_TOKENS


def test_sleep_and_wake(on: Rig) -> None:
    kept = Kept(on, "asleep")
    on.post("/sleep?level=1")
    on.wait_until(lambda: on.engine["attestable"])
    began_s = time.monotonic()
    resumed = kept.agent.resume()
    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "tier_off")
    assert time.monotonic() - began_s < DEADLINE_S  # nothing was asked of the engine
    with ThreadPoolExecutor(1) as pool:
        attesting = pool.submit(on.attest)
        time.sleep(1.5)
        asleep = on.engine
        on.post("/wake_up")
        assert attesting.result().status_code == httpx.codes.OK
    assert asleep["tier_off"]  # a word is heard by an engine that is awake
    kept.require_restored()


def test_a_paused_engine_answers_late_and_honestly(on: Rig) -> None:
    kept = Kept(on, "paused")
    agent = on.agent("waiting")
    agent.ticketed_turn(opening("waiting", PROMPT_TOKENS), tokens=8)
    on.stack.clear_vram()
    on.post("/pause?mode=keep&clear_cache=false")

    resumed = kept.agent.resume()
    suspended = agent.try_call("POST", "/v1/sessions/waiting/suspend")

    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "deadline")
    assert (suspended.status_code, suspended.json()["code"]) == (504, "deadline_exceeded")
    assert "paused" in suspended.json()["detail"]
    on.post("/resume")
    assert kept.agent.resume()["tokens_restored"] == kept.stored_tokens  # from wherever
    assert kept.next_turn().token_ids == kept.uninterrupted.token_ids
    agent.ticketed_turn(opening("waiting", PROMPT_TOKENS), tokens=8)
    assert agent.suspend()["snapshot"]["generation"] == 1


def test_an_aborted_suspend_says_so(on: Rig) -> None:
    agent = on.agent("aborted")
    agent.ticketed_turn(opening("aborted", PROMPT_TOKENS), tokens=8)
    on.wait_until(lambda: on.daemon("GET", "/v1/sessions/aborted").json()["state"] == "active")
    mover = on.stack.mover_pid()
    os.kill(mover, signal.SIGSTOP)
    pausing = threading.Thread(target=on.post, args=("/pause?mode=abort&clear_cache=false",))
    with ThreadPoolExecutor(1) as pool:
        try:
            suspending = pool.submit(agent.try_call, "POST", "/v1/sessions/aborted/suspend")
            time.sleep(1.0)
            pausing.start()
            answer = suspending.result()
        finally:
            os.kill(mover, signal.SIGCONT)
    pausing.join()
    on.post("/resume")
    assert answer.json()["code"] == "engine_unreachable"
    assert "aborted" in answer.json()["detail"]
    assert on.store().generations(DEFAULT_TENANT, SessionId("aborted")) == []
    assert agent.suspend()["snapshot"]["generation"] == 1


def test_changed_files_cannot_be_attested(on: Rig) -> None:
    weights = on.model / "model.safetensors"
    copied = shutil.copy(weights, weights.with_suffix(".copy"))
    Path(copied).replace(weights)  # the same bytes: the connector sees that it is another file
    on.post(RESET)
    on.wait_until(lambda: on.engine["attestable"])
    refused = on.attest()
    assert (refused.status_code, refused.json()["code"]) == (409, "attestation_refused")
    assert "model.safetensors" in refused.json()["detail"]
    assert on.stack.engine.is_running()
