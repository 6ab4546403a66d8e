"""Engines restarted with one fact changed: what may still be used is, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.identity_report import IdentityReport
from sessiond.testing.model import change_weights
from sessiond.testing.model_changes import (
    change_tokenizer,
    link_checkpoint,
    make_hub_cache,
    replace_file,
)
from sessiond.testing.restarts import CHUNK_TOKENS, Found, Suspended, find_out, suspend_and_kill
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import opening

OPTIONS = ("--max-model-len", "2048", "--ram-tier-bytes", str(256 << 20))
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONHASHSEED": "1"}
HUB_NAME = "someone/smollm2"
REVISIONS = ("a" * 40, "b" * 40, "c" * 40)


@dataclass(frozen=True)
class Change:
    """One fact of an engine, and what a resume says when it has changed."""

    name: str
    outcome: str
    reason: str
    options: tuple[str, ...] = ()  #: ``{model}`` stands for the checkpoint's path
    env: Mapping[str, str] = field(default_factory=dict)  #: as the options
    edit: Callable[[Path], object] | None = None  #: of the checkpoint, at its old path
    revision: str = ""  #: of a model of the hub, instead of a folder
    moved: bool = False  #: the checkpoint lies elsewhere
    model: str = SERVED_NAME  #: the name under which the engine serves it


def other_template(model: Path) -> None:
    """Write the checkpoint's template, with a word more after each message, beside it."""
    template = (model / "chat_template.jinja").read_text()
    changed = template.replace("message['content'] + '", "message['content'] + '\n/think")
    assert changed != template
    model.with_suffix(".jinja").write_text(changed)


def other_tokenizer(model: Path) -> None:
    change_tokenizer(model, opening("folder", 700)[0]["content"], same_tokens=3 * CHUNK_TOKENS)


def code_elsewhere(model: Path) -> None:
    """Write a class that computes as vLLM's own does, outside the checkpoint."""
    (model.parent / "other_llama.py").write_text(
        "from vllm.model_executor.models.llama import LlamaForCausalLM\n\n\n"
        "class OtherLlama(LlamaForCausalLM):\n    pass\n"
    )


OVERRIDE = ("--model-class-overrides", '{"LlamaForCausalLM": "other_llama:OtherLlama"}')
TEMPLATE = ("--chat-template", "{model}.jinja")
ROPE = '{"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0}}'

# Other bytes: nothing of the snapshot is used.
BYTES = [
    Change("weights", "recomputed", "weights_mismatch", edit=lambda m: change_weights(m, 0.5)),
    Change("rope", "recomputed", "model_config_mismatch", ("--hf-overrides", ROPE)),
    # As many bytes as before, so that only the fact itself can tell.
    Change("model_dtype", "recomputed", "model_dtype_mismatch", ("--dtype", "float16")),
    Change("kv_dtype", "recomputed", "kv_dtype_mismatch", ("--kv-cache-dtype", "fp8")),
    Change(
        "code",
        "recomputed",
        "model_code_mismatch",
        OVERRIDE,
        {"PYTHONPATH": "{model}/.."},
        edit=code_elsewhere,
    ),
    Change("computation", "recomputed", "computation_mismatch", env={"VLLM_CPU_INT4_W4A8": "0"}),
    Change("chunk_tokens", "recomputed", "chunk_size_mismatch", ("--chunk-tokens", "256")),
    Change("block_size", "recomputed", "kv_groups_mismatch", ("--block-size", "64")),
    Change("revision", "recomputed", "revision_mismatch", revision=REVISIONS[1]),
    Change("hub_weights", "recomputed", "weights_mismatch", revision=REVISIONS[2]),
]
# Other meaning of tokens: nothing is fetched ahead; the next turn's own tokens decide.
PROMPT = [
    Change("chat_template", "recomputed", "chat_template_mismatch", TEMPLATE, edit=other_template),
    Change("tokenizer", "recomputed", "tokenizer_mismatch", edit=other_tokenizer),
]
# No identity at all: everything is used.
ADVISORY = [
    Change("hash_seed", "restored", "", env={"PYTHONHASHSEED": "2"}),
    Change("path", "restored", "", moved=True),
    Change("threads", "restored", "", env={"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}),
    Change("served_name", "restored", "", ("--served-model-name", "other"), model="other"),
]


class Stage:
    """One folder with sessions, suspended once each, and engines one after the other."""

    def __init__(self, folder: Path, pristine: Path) -> None:
        self._pristine = pristine
        self._model = folder / "model"
        self._hub = folder / "hub"
        self._closing = ExitStack()
        self._suspended: dict[str, Suspended] = {}
        self.stack = self._closing.enter_context(Stack(folder / "stack"))
        self.stack.start_daemon()

    def close(self) -> None:
        self._closing.close()

    def suspended(self, kind: str, base: Change) -> Suspended:
        """Return the session that an engine of this kind suspended, before its first change."""
        if kind not in self._suspended:
            self.start(base)
            agent = Agent(kind, self.stack.daemon_port, self.stack.engine_port)
            self._closing.callback(agent.close)
            agent.create_session(SERVED_NAME)
            self._suspended[kind] = suspend_and_kill(self.stack, agent)
        return self._suspended[kind]

    def fork(self, suspended: Suspended, change: Change) -> Suspended:
        """Return a fork, so that the turn that dies with this change's engine is no other's."""
        agent = suspended.agent.fork(f"{suspended.agent.session_id}-{change.name}")
        self._closing.callback(agent.close)
        agent.model = change.model
        return replace(suspended, agent=agent)

    def start(self, change: Change) -> None:
        """Start an engine with this change."""
        env = {**ENV, **change.env}
        options = (*OPTIONS, *change.options)
        if change.revision:
            model = Path(HUB_NAME)
            self._make_hub()
            env["HF_HUB_CACHE"] = str(self._hub)
            options += ("--revision", change.revision)
        else:
            model = self._model.with_name("elsewhere") if change.moved else self._model
            link_checkpoint(self._pristine, model)
        if change.edit is not None:
            change.edit(model)
        told = [option.replace("{model}", str(model)) for option in options]
        env = {name: value.replace("{model}", str(model)) for name, value in env.items()}
        self.stack.start_engine(model, told, env)

    def _make_hub(self) -> None:
        if not self._hub.exists():
            makers = (keep, harmless, lambda model: change_weights(model, 0.5))
            make_hub_cache(
                self._hub, HUB_NAME, self._pristine, dict(zip(REVISIONS, makers, strict=True))
            )


def keep(_model: Path) -> None:
    """As it is."""


def harmless(model: Path) -> None:
    replace_file(model / "README.md", "Another sentence.\n")


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("fields"), model)
    yield made
    made.close()


@pytest.fixture
def try_change(stage: Stage) -> Iterator[Callable[[Change], tuple[Suspended, Found]]]:
    """Restart the engine with a change; return what had been suspended and what was found."""

    def run(change: Change) -> tuple[Suspended, Found]:
        if change.revision:
            base = Change("", "", "", revision=REVISIONS[0])
            suspended = stage.suspended("hub", base)
        else:
            suspended = stage.suspended("folder", Change("", "", ""))
        stage.start(change)
        return suspended, find_out(stage.fork(suspended, change))

    yield run
    stage.stack.engine.kill()


def told(change: Change, found: Found, report: IdentityReport) -> tuple[str, str]:
    """Return what the resume said, and report it."""
    outcome, reason = found.resumed["outcome"], found.resumed["reason"]
    report.field(
        change.name,
        outcome=outcome,
        reason=reason,
        output_matches_fresh_engine=found.agrees,
    )
    return outcome, reason


@pytest.mark.parametrize("change", BYTES, ids=lambda change: change.name)
def test_other_bytes_are_never_loaded(
    change: Change,
    try_change: Callable[[Change], tuple[Suspended, Found]],
    report: IdentityReport,
) -> None:
    _, found = try_change(change)

    assert told(change, found, report) == (change.outcome, change.reason)
    assert found.turn.cached_tokens == 0
    assert found.turn.token_ids == found.fresh.token_ids


@pytest.mark.parametrize("change", PROMPT, ids=lambda change: change.name)
def test_where_text_may_mean_other_tokens_the_turn_itself_decides(
    change: Change,
    try_change: Callable[[Change], tuple[Suspended, Found]],
    report: IdentityReport,
) -> None:
    suspended, found = try_change(change)

    assert told(change, found, report) == (change.outcome, change.reason)
    assert found.resumed["tokens_restored"] == 0
    reusable = suspended.reusable_tokens(found.turn)
    assert found.turn.prompt_token_ids != suspended.uninterrupted.prompt_token_ids
    assert reusable > 0
    assert found.turn.cached_tokens == reusable
    assert found.agrees


@pytest.mark.parametrize("change", ADVISORY, ids=lambda change: change.name)
def test_what_is_no_identity_costs_nothing(
    change: Change,
    try_change: Callable[[Change], tuple[Suspended, Found]],
    report: IdentityReport,
) -> None:
    suspended, found = try_change(change)

    assert told(change, found, report) == (change.outcome, change.reason)
    assert found.resumed["tokens_restored"] == suspended.stored_tokens
    assert found.turn.cached_tokens == suspended.reusable_tokens(found.turn)
    assert found.turn.token_ids == suspended.uninterrupted.token_ids
    assert found.agrees


def test_another_node_that_is_given_the_store_restores(
    stage: Stage, model: Path, tmp_path: Path, report: IdentityReport
) -> None:
    suspended = stage.suspended("folder", Change("", "", ""))
    shutil.copytree(stage.stack.store_root, tmp_path / "store")
    shutil.copy2(stage.stack.key_file, tmp_path / "server.key")
    link_checkpoint(model, tmp_path / "model")
    with Stack(tmp_path) as node, ExitStack() as closing:
        rebuild = (sys.executable, "-m", "sessiond.app.main", "store", "rebuild-registry")
        subprocess.run(rebuild, env={**os.environ, **node.env}, check=True)
        node.start_daemon()
        node.start_engine(tmp_path / "model", OPTIONS, {**ENV, "PYTHONHASHSEED": "3"})
        agent = Agent(suspended.agent.session_id, node.daemon_port, node.engine_port)
        closing.callback(agent.close)
        found = find_out(replace(suspended, agent=agent))

    assert told(Change("node", "restored", ""), found, report) == ("restored", "")
    assert found.resumed["tokens_restored"] == suspended.stored_tokens
    assert found.turn.cached_tokens == suspended.reusable_tokens(found.turn)
    assert found.turn.token_ids == suspended.uninterrupted.token_ids
    assert found.agrees
