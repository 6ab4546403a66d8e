"""The golden test of each kind of KV: a killed engine changes no token, or the kind is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from sessiond.app.kvsize import context_kv_bytes
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.identity_report import IdentityReport
from sessiond.testing.servers import ServerFailedError
from sessiond.testing.stack import Stack
from sessiond.testing.texts import Messages, continued, real_text
from sessiond.testing.tiny_models import build_tiny_model

MODELS = Path(__file__).parents[3] / ".cache" / "models"
PART_CHARS = 5_600  # about 1,400 tokens
TURN_TOKENS = 24
OPTIONS = ("--ram-tier-bytes", str(128 << 20))
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
FRESH_SALT = "fresh"
#: How far log-probabilities may lie apart between two ways of computing the same context: logits
#: of these models reach 16, where neighbours in bfloat16 are 0.06 apart.
TOLERANCE = 0.5


@dataclass(frozen=True)
class Case:
    """An engine that is proved, or refused.

    :param kind: as the report names it
    :param says: in the refusal; empty for what is proved
    :param as_if_new: whether vLLM says the same to a context that is new to it as to one of which
        it has a part already
    """

    kind: str
    model: str
    options: tuple[str, ...] = ()
    says: str = ""
    as_if_new: bool = True


# Without AMX, the CPU platform has no prefix caching for latent attention.
LATENT_SAYS = "" if torch.cpu._is_amx_tile_supported() else "prefix caching is off"
CASES = [
    Case("full attention (Llama)", "llama"),
    Case("full attention (Qwen 3)", "qwen3"),
    Case("full attention with an FP8 KV cache (Llama)", "llama", ("--kv-cache-dtype", "fp8")),
    Case("sliding window mixed with full attention (Gemma 3)", "gemma3"),
    Case("sliding window in every layer (Mistral)", "mistral"),
    # Plain vLLM 0.32 with AMX, without sessiond too, says something else to the same prompt where
    # it has the first half of it already.
    Case("latent attention (DeepSeek V2)", "deepseek2", says=LATENT_SAYS, as_if_new=False),
    Case("linear mixed with full attention (Qwen3-Next)", "qwen3-next", says="MambaSpec"),
    Case("attention inside chunks (Llama 4)", "llama4", says="ChunkedLocalAttentionSpec"),
]
GOLDEN = [case for case in CASES if not case.says]
REFUSED = [case for case in CASES if case.says]


@dataclass(frozen=True)
class Memory:
    """What a session did in the engine that was not yet killed."""

    agent: Agent
    next: Messages
    uninterrupted: Turn  #: the turn that follows
    changed_prompt: tuple[int, ...]  #: another one that begins in the same way
    changed: list[dict[str, float]]  #: what the engine said to it
    stored_tokens: int


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path) as running:
        running.start_daemon()
        yield running


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.kind)
def test_sessions_come_back_with_the_same_tokens(
    case: Case, stack: Stack, report: IdentityReport
) -> None:
    model = build_tiny_model(MODELS, case.model)
    stack.start_engine(model, (*OPTIONS, *case.options), ENV)
    with ExitStack() as closing:
        memories = [remember(stack, about, closing) for about in range(2)]
        # Otherwise the tokens would be no proof of the context.
        assert memories[0].uninterrupted.token_ids != memories[1].uninterrupted.token_ids
        assert context_kv_bytes(model, case.options) == real_context_bytes(memories[0].agent)
        stack.engine.kill()
        stack.start_engine(model, (*OPTIONS, *case.options), ENV)

        for memory in reversed(memories):
            comes_back(memory)
        for memory in memories:
            shares_its_beginning(memory, case)

    report.architecture(case.kind, "golden")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.kind)
def test_what_is_not_proved_does_not_start(
    case: Case, stack: Stack, report: IdentityReport
) -> None:
    model = build_tiny_model(MODELS, case.model)

    with pytest.raises(ServerFailedError, match="ended with"):
        stack.start_engine(model, (*OPTIONS, *case.options), ENV)

    log = stack.engine.log_text()
    assert "sessiond does not support this engine" in log
    assert case.says in log
    report.architecture(case.kind, "refused")


def remember(stack: Stack, about: int, closing: ExitStack) -> Memory:
    """Let a session take a turn and the next one, and suspend what the first one left.

    :param about: which part of the text it is about: a model that sees only a window of it could
        not tell sessions apart that differ in their beginning alone
    """
    agent = Agent(f"session-{about}", stack.daemon_port, stack.engine_port)
    closing.callback(agent.close)
    agent.create_session()
    before = [{"role": "user", "content": real_text((about + 1) * PART_CHARS)[-PART_CHARS:]}]
    first = agent.ticketed_turn(before, tokens=TURN_TOKENS)
    following = continued(before, first.text)
    salt = agent.ticket()["cache_salt"]
    uninterrupted = agent.turn(following, tokens=TURN_TOKENS, cache_salt=salt)
    assert uninterrupted.cached_tokens > PART_CHARS // 8
    asked = agent.turn(changed_in_its_middle(before), tokens=1, cache_salt=FRESH_SALT)
    changed = scored(agent, asked.prompt_token_ids, cache_salt=salt)
    snapshot = agent.suspend()["snapshot"]
    return Memory(
        agent,
        following,
        uninterrupted,
        asked.prompt_token_ids,
        changed,
        snapshot["tokens_restorable"],
    )


def real_context_bytes(agent: Agent) -> int:
    """Return how many bytes the engine keeps for a full context, as itself has resolved it."""
    engine_id = agent.try_call("GET", "/v1/engines").json()["engines"][0]["engine_id"]
    engine = agent.try_call("GET", f"/v1/engines/{engine_id}").json()
    groups = len(engine["fingerprint"]["kv_groups"])
    chunks = engine["max_model_tokens"] // engine["chunk_tokens"]
    return int(groups * chunks * engine["chunk_bytes"])


def comes_back(memory: Memory) -> None:
    resumed = memory.agent.resume()
    turn = memory.agent.ticketed_turn(memory.next, tokens=TURN_TOKENS)

    assert (resumed["outcome"], resumed["tokens_restored"]) == ("restored", memory.stored_tokens)
    assert turn.cached_tokens == memory.uninterrupted.cached_tokens
    assert turn.token_ids == memory.uninterrupted.token_ids


def shares_its_beginning(memory: Memory, case: Case) -> None:
    """A prompt that becomes another one in its middle: the engine says what it said before."""
    agent = memory.agent
    ticket = agent.ticket()

    reused = scored(
        agent,
        memory.changed_prompt,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )

    assert agrees(reused, memory.changed)
    if case.as_if_new:
        assert agrees(reused, scored(agent, memory.changed_prompt, cache_salt=FRESH_SALT))


def changed_in_its_middle(messages: Messages) -> Messages:
    text = messages[0]["content"]
    half = len(text) // 2
    return [{"role": "user", "content": text[:half] + "!" + text[half:]}]


def scored(agent: Agent, prompt: Sequence[int], **fields: object) -> list[dict[str, float]]:
    """Complete a prompt; return for each token the best five and their log-probabilities."""
    answer = agent.complete(
        prompt,
        max_tokens=TURN_TOKENS,
        ignore_eos=True,
        logprobs=5,
        return_tokens_as_token_ids=True,
        **fields,
    )
    best: list[dict[str, float]] = answer["choices"][0]["logprobs"]["top_logprobs"]
    return best


def agrees(one: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> bool:
    """Whether two runs say the same, up to the first near tie: from there on contexts differ."""
    for here, there in zip(one, other, strict=True):
        mine, theirs = (max(best, key=best.__getitem__) for best in (here, there))
        if not (near_best(mine, there) and near_best(theirs, here)):
            return False
        if mine != theirs:
            return True
    return True


def near_best(token: str, best: dict[str, float]) -> bool:
    return best.get(token, float("-inf")) >= max(best.values()) - TOLERANCE
