"""A suspend that comes too late: other contexts have pushed a part of the session's KV out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.replies import require_same_tokens
from sessiond.testing.stack import Stack

CHUNK_TOKENS = 128
CHUNKS = 14
PROMPT = range(30_000, 30_000 + CHUNKS * CHUNK_TOKENS + 20)
#: VRAM has 51 blocks: 15 of the session, 22 of the stranger, 14 that are free. vLLM gives those
#: away first and then the session's, the last ones first.
PUSHING_TOKENS = 20 * CHUNK_TOKENS
REPLY_TOKENS = 12
#: The requests of a suspend need a block or two themselves, so that counts differ by so many.
ATTEMPTS = 4


def turn(agent: Agent, prompt: Any, tokens: int) -> dict[str, Any]:  # noqa: ANN401 - token ids
    ticket = agent.ticket()
    return agent.complete(
        prompt,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=5,
        return_token_ids=True,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )


def half_evicted(agent: Agent, stranger: Agent) -> None:
    """Take a turn; then let others have all of RAM, and the end of its KV in VRAM."""
    turn(agent, PROMPT, 1)
    stranger.resume()
    agent.complete(range(5000, 5000 + PUSHING_TOKENS), cache_salt=f"pushing {agent.session_id}")


def choose(agent: Agent, choice: str) -> None:
    body = {"on_evicted": choice}
    answer = agent.try_call("PATCH", f"/v1/sessions/{agent.session_id}", body)
    assert answer.json()["on_evicted"] == choice


def counts(told: dict[str, Any]) -> tuple[int, int, int]:
    """Return what was kept, lost and computed again, in chunks."""
    found = told["snapshot"]["tokens_restorable"], told["missing_tokens"], told["recomputed_tokens"]
    kept, lost, recomputed = (tokens // CHUNK_TOKENS for tokens in found)
    return kept, lost, recomputed


def test_prefix_keeps_what_is_there(
    agent: Agent, stranger: Agent, evict: Callable[[], None]
) -> None:
    half_evicted(agent, stranger)
    told = agent.suspend()
    kept, lost, recomputed = counts(told)
    assert kept > 0
    assert lost > 0
    assert (kept + lost, recomputed) == (CHUNKS, 0)
    assert told["evicted_tokens"] == told["missing_tokens"]
    assert [cause["reason"] for cause in told["causes"]] == ["kv_evicted"]
    evict()
    assert agent.resume()["disk_tokens"] == kept * CHUNK_TOKENS


def test_skip_keeps_nothing(agent: Agent, stranger: Agent, store: Store) -> None:
    choose(agent, "skip")
    half_evicted(agent, stranger)
    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")
    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert answer.json()["code"] == "suspend_skipped"
    assert store.generations(DEFAULT_TENANT, SessionId(agent.session_id)) == []


@pytest.fixture
def reference(agent: Agent, stack: Stack) -> dict[str, Any]:
    """What the session would say if nobody had disturbed it."""
    turn(agent, PROMPT, 1)
    answer = turn(agent, PROMPT, REPLY_TOKENS)
    stack.clear_vram()
    return answer


def test_recompute_keeps_all_and_computes_the_same(
    reference: dict[str, Any],
    new_agent: Callable[[], Agent],
    stranger: Agent,
    evict: Callable[[], None],
    store: Store,
) -> None:
    checksums: dict[int, list[bytes]] = {}
    for _ in range(ATTEMPTS):
        evict()  # sessions of one tenant share what is in VRAM and RAM
        agent = new_agent()
        choose(agent, "recompute")
        half_evicted(agent, stranger)
        told = agent.suspend()
        kept, lost, recomputed = counts(told)
        assert (kept, lost) == (CHUNKS, 0)
        assert 0 < recomputed < CHUNKS
        assert told["evicted_tokens"] == told["recomputed_tokens"]
        assert told["causes"] == []
        manifest = store.read_manifest(DEFAULT_TENANT, SessionId(agent.session_id), 1)
        computed = [chunk.checksum for chunk in manifest.chunks]
        # Of as many tokens, a recompute equals a recompute, to the last bit.
        if checksums.setdefault(recomputed, computed) is not computed:
            assert checksums[recomputed] == computed
            break
    else:
        pytest.fail("no two suspends had to compute as many tokens")
    evict()
    resumed = agent.resume()
    assert (resumed["outcome"], resumed["disk_tokens"]) == ("restored", CHUNKS * CHUNK_TOKENS)
    answer = turn(agent, PROMPT, REPLY_TOKENS)
    details = answer["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == CHUNKS * CHUNK_TOKENS
    require_same_tokens(answer, reference)
