"""Eight sessions that are alike to a word: each gets its own back, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack
from sessiond.testing.texts import real_text

OPTIONS = ("--max-model-len", "2048", "--ram-tier-bytes", str(256 << 20))
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
#: Said in the middle of a long text that is the same for all, and near its end.
SECRETS = (
    ("amber", "falcon"),
    ("basil", "otter"),
    ("cedar", "heron"),
    ("delta", "badger"),
    ("winter", "rabbit"),
    ("flint", "raven"),
    ("silver", "tiger"),
    ("hazel", "salmon"),
)
RESUMED_IN_THE_ORDER = (5, 2, 7, 0, 3, 6, 1, 4)
QUESTIONS = ("\n\nThe password is", "\n\nMy cat is called")
ANSWER_TOKENS = 3
STORED_CHUNKS = 5


@dataclass(frozen=True)
class Answer:
    """What one question brought."""

    token_ids: tuple[int, ...]
    text: str
    cached_tokens: int


def story(secrets: tuple[str, str]) -> str:
    said = [
        f"{question} {secret}.\n\n" for question, secret in zip(QUESTIONS, secrets, strict=True)
    ]
    text = real_text(2700)
    return text[:1500] + said[0] + text[1500:2300] + said[1] + text[2300:]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "stack") as running:
        running.start_daemon()
        yield running


@pytest.fixture
def agents(stack: Stack) -> Iterator[list[Agent]]:
    with ExitStack() as closing:
        made = [
            Agent(f"agent-{number}", stack.daemon_port, stack.engine_port)
            for number in range(len(SECRETS))
        ]
        for agent in made:
            closing.callback(agent.close)
        yield made


def completed(agent: Agent, prompt: str | Sequence[int], tokens: int) -> dict[str, Any]:
    """Complete a prompt in a turn of the agent's session."""
    ticket = agent.ticket()
    return agent.complete(
        prompt,
        max_tokens=tokens,
        ignore_eos=True,
        return_token_ids=True,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )


def asked(agent: Agent, text: str) -> list[Answer]:
    """Ask for both secrets."""
    answers = []
    for question in QUESTIONS:
        answer = completed(agent, text + question, ANSWER_TOKENS)
        (choice,) = answer["choices"]
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        answers.append(Answer(tuple(choice["token_ids"]), choice["text"], cached))
    return answers


def test_each_of_eight_sessions_recalls_its_own_secrets(
    stack: Stack, agents: list[Agent], model: Path
) -> None:
    stack.start_engine(model, OPTIONS, ENV)
    before = {}
    for agent, secrets in zip(agents, SECRETS, strict=True):
        agent.create_session()
        completed(agent, story(secrets), 1)
        assert agent.suspend()["snapshot"]["chunks"] == STORED_CHUNKS
        before[agent.session_id] = asked(agent, story(secrets))
    stack.engine.kill()

    stack.start_engine(model, OPTIONS, ENV)
    resumed = {n: agents[n].resume() for n in RESUMED_IN_THE_ORDER}
    after = {n: asked(agents[n], story(SECRETS[n])) for n in RESUMED_IN_THE_ORDER}

    for number, secrets in enumerate(SECRETS):
        assert resumed[number]["outcome"] == "restored"
        for answer, uninterrupted, secret in zip(
            after[number], before[agents[number].session_id], secrets, strict=True
        ):
            assert answer.text.startswith(f" {secret}")
            assert answer.token_ids == uninterrupted.token_ids
            assert answer.cached_tokens >= STORED_CHUNKS * 128
