"""Two real adapters and the model itself in one engine: each session has its own one's KV.

Only one adapter fits the engine at a time, so vLLM loads them from their files again and again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from sessiond.testing.adapters import RANK, build_adapter
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.identity_report import IdentityReport
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import Messages, continued, opening

OPTIONS = (
    "--max-model-len", "2048", "--ram-tier-bytes", str(64 << 20),
    "--enable-lora", "--max-loras", "1", "--max-lora-rank", str(RANK),
)  # fmt: skip
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
PROMPT_TOKENS = 400
TOKENS = 16
CHUNK_TOKENS = 128
FRESH_SALT = "fresh"
#: Seeds of the adapters' weights; the last one touches the embedding of tokens as well.
SEEDS = {"poet": 1, "scribe": 2, "glossary": 3}


@dataclass(frozen=True)
class Past:
    """A session that was suspended in an engine that was killed."""

    agent: Agent
    messages: Messages  #: of its next turn
    uninterrupted: Turn  #: that turn, in the engine that was not yet killed
    stored_tokens: int


@dataclass
class Stage:
    """Engines one after the other, each with adapters in folders of its own."""

    model: Path
    folder: Path
    stack: Stack
    closing: ExitStack
    past: dict[str, Past] = field(default_factory=dict)
    _starts: int = 0

    def start(self, named: Mapping[str, str]) -> Path:
        """Start an engine with these adapters, content by name, in this order."""
        self._starts += 1
        folder = self.folder / f"adapters-{self._starts}"
        for name, content in named.items():
            shutil.copytree(self.folder / "pristine" / content, folder / name)
        modules = [f"{name}={folder / name}" for name in named]
        self.stack.start_engine(self.model, (*OPTIONS, "--lora-modules", *modules), ENV)
        return folder

    def agent(self, model: str) -> Agent:
        agent = Agent(f"agent-{model}", self.stack.daemon_port, self.stack.engine_port)
        self.closing.callback(agent.close)
        agent.model = model
        agent.create_session(model)
        return agent


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("lora")
    for name, seed in SEEDS.items():
        target = folder / "pristine" / name
        build_adapter(target, model, seed, embeddings=name == "glossary")
    with ExitStack() as closing:
        stack = closing.enter_context(Stack(folder / "stack"))
        stack.start_daemon()
        own = Path(shutil.copytree(model, folder / "model"))
        yield Stage(own, folder, stack, closing)


@pytest.fixture(scope="module")
def suspended(stage: Stage) -> Mapping[str, Past]:
    """The model's session and one of each adapter, with the same prompt, suspended once."""
    stage.start({name: name for name in SEEDS})
    before = opening("all", PROMPT_TOKENS)
    for name in (SERVED_NAME, *SEEDS):
        agent = stage.agent(name)
        first = agent.ticketed_turn(before, tokens=TOKENS)
        messages = continued(before, first.text)
        salt = agent.ticket()["cache_salt"]
        again = agent.turn(messages, tokens=TOKENS, cache_salt=salt)
        snapshot = agent.suspend()["snapshot"]
        assert snapshot["model"] == name
        stage.past[name] = Past(agent, messages, again, snapshot["tokens_restorable"])
    stage.stack.engine.kill()
    return stage.past


@pytest.fixture(scope="module")
def moved(stage: Stage, suspended: Mapping[str, Past]) -> Path:
    """Adapters in another order and at other paths; return their folder."""
    assert suspended
    return stage.start({name: name for name in reversed(SEEDS)})


def adapters(agent: Agent) -> dict[str, dict[str, Any]]:
    """Return what the engine tells of its adapters."""
    (engine,) = agent.try_call("GET", "/v1/engines").json()["engines"]
    return {adapter["name"]: adapter for adapter in engine["adapters"]}


def said(agent: Agent, messages: Messages) -> tuple[Sequence[int], int, dict[str, Any]]:
    """Take a ticketed turn; return its tokens, vLLM's count of cached ones and our answer."""
    ticket = agent.ticket()
    answer = agent.chat(
        messages,
        max_tokens=TOKENS,
        ignore_eos=True,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )
    cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    ours: dict[str, Any] = answer["kv_transfer_params"]["sessiond"]
    return answer["choices"][0]["token_ids"], cached_tokens, ours


def without_session(agent: Agent, messages: Messages) -> tuple[Sequence[int], int]:
    """Call the gateway and name no session; return tokens and vLLM's count of cached ones."""
    body = {
        "model": agent.model,
        "messages": list(messages),
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = agent.try_call("POST", "/v1/chat/completions", body).raise_for_status().json()
    cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], cached_tokens


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("name", [SERVED_NAME, *SEEDS])
def test_moved_and_reordered_adapters_restore_exactly_their_own(
    suspended: Mapping[str, Past], name: str, report: IdentityReport
) -> None:
    past = suspended[name]
    resumed = past.agent.resume()
    turn = past.agent.ticketed_turn(past.messages, tokens=TOKENS)

    assert (resumed["outcome"], resumed["causes"]) == ("restored", [])
    assert resumed["tokens_restored"] == past.stored_tokens >= 3 * CHUNK_TOKENS
    assert turn.cached_tokens >= 3 * CHUNK_TOKENS
    assert turn.token_ids == past.uninterrupted.token_ids
    report.field(
        f"adapter_path ({name})",
        outcome=resumed["outcome"],
        reason=resumed["reason"],
        output_matches_fresh_engine=True,
    )


def test_each_adapter_says_something_else(suspended: Mapping[str, Past]) -> None:
    for one, other in combinations(suspended.values(), 2):
        assert one.uninterrupted.token_ids != other.uninterrupted.token_ids


@pytest.mark.usefixtures("moved")
def test_a_sub_agent_with_another_adapter_gets_none_of_the_sessions_kv(
    suspended: Mapping[str, Past],
) -> None:
    poet = suspended["poet"].agent
    digests = {name: adapter["digest"] for name, adapter in adapters(poet).items()}
    assert len({*digests.values(), ""}) == len(SEEDS) + 1
    for model, live in ((SERVED_NAME, None), ("scribe", digests["scribe"])):
        ticket = poet.ticket({"model": model})
        assert (ticket["engine"]["model"], ticket["plan"]) == (model, "recompute")
        (cause,) = ticket["causes"]
        assert (cause["reason"], cause["live"]) == ("adapter_mismatch", live)
        assert cause["stored"] == digests["poet"]


def test_one_that_is_overwritten_in_place_is_served_and_not_kept(
    stage: Stage, suspended: Mapping[str, Past], moved: Path
) -> None:
    scribe, poet = suspended["scribe"], suspended["poet"]
    build_adapter(moved / "scribe", stage.model, seed=99)
    _, _, ours = said(poet.agent, poet.messages)  # the scribe has to leave the engine's memory
    assert ours["ok"]

    tokens, cached_tokens, ours = said(scribe.agent, scribe.messages)
    (cause,) = ours["causes"]
    assert (ours["ok"], cause["reason"]) == (False, "adapter_unproven")
    assert "'scribe': its files changed" in cause["detail"]
    # vLLM has the new weights now, and in VRAM what the old ones computed.
    fresh = scribe.agent.turn(scribe.messages, tokens=TOKENS, cache_salt=FRESH_SALT)
    assert cached_tokens == 0
    assert tuple(tokens) == fresh.token_ids
    assert fresh.token_ids != scribe.uninterrupted.token_ids
    refused = scribe.agent.try_call("POST", f"/v1/sessions/{scribe.agent.session_id}/suspend")
    assert (refused.status_code, refused.json()["code"]) == (409, "adapter_unproven")
    assert "'scribe'" in refused.json()["detail"]
    assert adapters(poet.agent)["scribe"]["digest"] == ""
    assert poet.agent.suspend()["missing_tokens"] == 0


def test_versions_of_one_that_is_overwritten_share_nothing_without_a_session(
    stage: Stage, suspended: Mapping[str, Past], moved: Path
) -> None:
    glossary, poet = suspended["glossary"], suspended["poet"]
    without_session(glossary.agent, glossary.messages)
    assert without_session(glossary.agent, glossary.messages)[1] > 0  # of the same version
    said_by = []
    for seed in (97, 98):
        build_adapter(moved / "glossary", stage.model, seed)
        said(poet.agent, poet.messages)  # the glossary has to leave the engine's memory
        tokens, cached_tokens = without_session(glossary.agent, glossary.messages)
        assert cached_tokens == 0
        fresh = glossary.agent.turn(glossary.messages, tokens=TOKENS, cache_salt=f"fresh-{seed}")
        assert tuple(tokens) == fresh.token_ids
        said_by.append(fresh.token_ids)
    assert said_by[0] != said_by[1]


def test_swapped_names_load_nothing_of_each_other(
    stage: Stage, suspended: Mapping[str, Past], report: IdentityReport
) -> None:
    before = adapters(suspended["poet"].agent)["poet"]["digest"]
    stage.stack.engine.kill()
    stage.start({"poet": "scribe", "scribe": "poet"})
    past = suspended["poet"]
    resumed = past.agent.resume()
    turn = past.agent.ticketed_turn(past.messages, tokens=TOKENS)
    fresh = past.agent.turn(past.messages, tokens=TOKENS, cache_salt=FRESH_SALT)

    report.field(
        "adapter",
        outcome=resumed["outcome"],
        reason=resumed["reason"],
        output_matches_fresh_engine=turn.token_ids == fresh.token_ids,
    )
    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "adapter_mismatch")
    (cause,) = resumed["causes"]
    live = adapters(past.agent)
    assert (cause["stored"], cause["live"]) == (before, live["poet"]["digest"])
    assert live["scribe"]["digest"] == before
    assert turn.cached_tokens == 0
    assert turn.token_ids == fresh.token_ids
    assert fresh.token_ids != past.uninterrupted.token_ids
