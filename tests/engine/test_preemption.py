"""A restored turn that vLLM preempts, because VRAM is full, comes back with the right tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.replies import require_same_tokens
from sessiond.testing.stack import Stack

CHUNK_TOKENS = 128
# VRAM has 51 blocks: 22 for the stranger's turn, which is restored and so costs no prefill, six
# for each of the others, and five for the turn in question. Each of the others will need one more.
OTHERS = 4
OTHER_TOKENS = 730
TOKENS = 50
STRANGER_TOKENS = 90
ATTEMPTS = 3


def metric(stack: Stack, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{stack.engine_port}/metrics", timeout=30).text
    found = re.findall(rf"^vllm:{name}{{[^}}]*}} ([0-9.e+]+)$", text, re.MULTILINE)
    return sum(float(value) for value in found)


def wait_until_running(stack: Stack, requests: int) -> None:
    deadline_s = time.monotonic() + 60
    while metric(stack, "num_requests_running") < requests:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def restored_turn(agent: Agent, prompt: Sequence[int], tokens: int = TOKENS) -> dict[str, Any]:
    ticket = agent.ticket()
    params = {"kv_transfer_params": ticket["kv_transfer_params"]}
    return complete(agent, prompt, tokens, cache_salt=ticket["cache_salt"], **params)


def complete(
    agent: Agent,
    prompt: Sequence[int],
    tokens: int,
    **fields: Any,  # noqa: ANN401 - any field of vLLM
) -> dict[str, Any]:
    return agent.complete(
        prompt,
        max_tokens=tokens,
        ignore_eos=True,
        logprobs=5,
        return_token_ids=True,
        **fields,
    )


def crowd_out(
    stack: Stack, agent: Agent, prompt: Sequence[int], stranger: Callable[[], Any], attempt: int
) -> dict[str, Any]:
    """Take a turn of the session while requests that came before it come to need its blocks."""
    others = [range(1000 * number, 1000 * number + OTHER_TOKENS) for number in range(1, OTHERS + 1)]
    salt = f"other {attempt}"
    with ThreadPoolExecutor(OTHERS + 1) as pool:
        waiting = [pool.submit(stranger)]
        wait_until_running(stack, 1)
        waiting += [
            pool.submit(complete, agent, other, TOKENS, cache_salt=salt) for other in others
        ]
        wait_until_running(stack, OTHERS + 1)
        answer = restored_turn(agent, prompt)
        for other in waiting:
            assert other.result()["usage"]["completion_tokens"] >= TOKENS
    return answer


def test_a_restored_turn_that_is_preempted_has_the_right_tokens(
    stack: Stack, agent: Agent, stranger: Agent, store: Store, evict: Callable[[], None]
) -> None:
    strangers = store.read_manifest(DEFAULT_TENANT, SessionId(stranger.session_id), 1).tokens
    prompt = range(20_000, 20_000 + 4 * CHUNK_TOKENS + 20)
    salt = agent.ticket()["cache_salt"]
    complete(agent, prompt, 1, cache_salt=salt)
    reference = restored_turn(agent, prompt)  # with its first chunks from VRAM, as later from disk
    agent.suspend()

    for attempt in range(ATTEMPTS):
        evict()
        before = metric(stack, "num_preemptions_total")
        long_turn = partial(restored_turn, stranger, strangers, STRANGER_TOKENS)
        answer = crowd_out(stack, agent, prompt, long_turn, attempt)
        ours = answer["kv_transfer_params"]["sessiond"]
        if ours["preemptions"]:
            break

    assert ours["preemptions"] > 0
    assert metric(stack, "num_preemptions_total") > before
    split = ours["split"]
    restored = split["vram_tokens"] + split["ram_tokens"] + split["disk_tokens"]
    assert restored == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert restored == 4 * CHUNK_TOKENS
    require_same_tokens(answer, reference)
    assert stack.engine.is_running()
