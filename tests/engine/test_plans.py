"""Load or recompute on the real engine: what costs more than it saves is not loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sessiond.domain.calibration import Calibration
from sessiond.domain.samples import LoadSample, PrefillSample, Tier
from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.service.calibration import kind_digest
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.stack import Stack

CHUNK_TOKENS = 128
LONG = range(12_000, 12_000 + 12 * CHUNK_TOKENS + 1)
OTHER = range(15_000, 15_000 + 3 * CHUNK_TOKENS + 1)
TINY = range(17_000, 17_000 + CHUNK_TOKENS + 1)


def policy(agent: Agent, policy: str) -> None:
    path = f"/v1/sessions/{agent.session_id}"
    assert agent.try_call("PATCH", path, {"plan_policy": policy}).status_code == 200


def resume(agent: Agent, policy: str) -> dict[str, Any]:
    path = f"/v1/sessions/{agent.session_id}/resume?plan_policy={policy}"
    told: dict[str, Any] = agent.try_call("POST", path).json()
    return told


def turn(agent: Agent, prompt: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
    """Take a turn, and return its tokens and where its prompt's KV came from."""
    ticket = agent.ticket()
    answer = agent.complete(
        prompt,
        max_tokens=8,
        ignore_eos=True,
        return_token_ids=True,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )
    return answer["choices"][0]["token_ids"], answer["kv_transfer_params"][ANSWER_PARAM]["split"]


def test_what_pays_is_loaded_and_the_rest_computed(
    new_agent: Callable[[], Agent], agent: Agent, evict: Callable[[], None]
) -> None:
    long, tiny, teacher = agent, new_agent(), new_agent()
    computed, tiny_warm = turn(tiny, TINY)[0], turn(tiny, TINY)[0]
    _, long_warm = turn(long, LONG)[0], turn(long, LONG)[0]
    turn(teacher, OTHER)
    for one in (long, tiny, teacher):
        one.suspend()
    evict()
    assert resume(teacher, "always_load")["outcome"] == "restored"  # now a load was measured

    policy(long, "auto")
    evict()
    loaded = resume(long, "auto")
    assert (loaded["outcome"], loaded["plan"]["choice"]) == ("restored", "load")
    assert loaded["plan"]["margin_s"] > 0
    assert loaded["timing"]["disk_tokens"] == 12 * CHUNK_TOKENS
    tokens, split = turn(long, LONG)
    assert (tokens, split["vram_tokens"]) == (long_warm, 12 * CHUNK_TOKENS)

    evict()
    never = resume(tiny, "never_load")
    assert (never["outcome"], never["reason"]) == ("recomputed", "policy_never_load")
    assert never["plan"]["recompute"]["ready"]["likely_s"] > 0
    policy(tiny, "never_load")
    tokens, split = turn(tiny, TINY)
    assert (tokens, split["disk_tokens"], split["vram_tokens"]) == (computed, 0, 0)

    evict()
    always = resume(tiny, "always_load")
    assert (always["outcome"], always["disk_tokens"]) == ("restored", CHUNK_TOKENS)
    policy(tiny, "always_load")
    assert turn(tiny, TINY)[0] == tiny_warm


def test_a_load_that_costs_more_than_computing_is_not_made(
    stack: Stack, store: Store, agent: Agent, evict: Callable[[], None]
) -> None:
    computed = turn(agent, TINY)[0]
    agent.suspend()
    evict()
    stack.daemon.kill()
    (engine,) = store.live_engines()
    calibration, now = Calibration(), time.time()
    for number in range(4):  # such as of a disk that has grown slow
        calibration = calibration.with_load(
            LoadSample(now - number, Tier.NVME, 2_000_000, CHUNK_TOKENS, 5.0)
        ).with_prefill(PrefillSample(now - number, 0, 256, 0.2))
    store.calibrations.revise(kind_digest(engine), lambda _: calibration.as_json())
    stack.start_daemon()

    told = resume(agent, "auto")
    policy(agent, "auto")
    tokens, split = turn(agent, TINY)

    assert (told["outcome"], told["reason"]) == ("recomputed", "recompute_is_faster")
    assert told["plan"]["margin_s"] < 0
    assert (told["tokens_restored"], split["disk_tokens"]) == (0, 0)
    assert tokens == computed
