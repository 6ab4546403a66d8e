"""Many resumes at once into room for three: all restored, in the order in which they came."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sessiond.testing.agent import Agent

CHUNK_TOKENS = 128
SESSION_CHUNKS = 7  # the RAM tier has 21
STORM = 9


def take_turn(agent: Agent, number: int) -> dict[str, Any]:
    first = 1000 * number
    ticket = agent.ticket()
    return agent.complete(
        range(first, first + SESSION_CHUNKS * CHUNK_TOKENS + 1),
        max_tokens=4,
        ignore_eos=True,
        return_token_ids=True,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )


def ended(agent: Agent, operation_id: str) -> dict[str, Any]:
    """Wait until an operation has ended."""
    deadline_s = time.monotonic() + 120
    while True:
        operation: dict[str, Any] = agent.try_call("GET", f"/v1/operations/{operation_id}").json()
        if operation["status"] != "running":
            return operation
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_storm_is_restored_in_order(
    agent: Agent, new_agent: Callable[[], Agent], evict: Callable[[], None]
) -> None:
    agents = [agent, *(new_agent() for _ in range(STORM - 1))]
    expected = {}
    for number, each in enumerate(agents, start=1):
        take_turn(each, number)
        if number in (1, STORM):  # with the context from VRAM, as later from disk
            expected[number] = take_turn(each, number)["choices"][0]["token_ids"]
        assert each.suspend()["snapshot"]["chunks"] == SESSION_CHUNKS
    evict()

    begun = [
        each.try_call("POST", f"/v1/sessions/{each.session_id}/resume?wait=0").json()
        for each in agents
    ]
    operations = [ended(each, one["operation_id"]) for each, one in zip(agents, begun, strict=True)]

    told = [one["result"] for one in operations]
    assert [one["outcome"] for one in told] == ["restored"] * STORM
    # Each chunk came from disk, once: nothing was computed, and nobody pushed another out.
    assert [one["disk_tokens"] for one in told] == [SESSION_CHUNKS * CHUNK_TOKENS] * STORM
    times = [one["finished_unix_s"] for one in operations]
    assert all(one <= later for one, later in zip(times, times[4:], strict=False))
    for number, tokens in expected.items():
        assert take_turn(agents[number - 1], number)["choices"][0]["token_ids"] == tokens
