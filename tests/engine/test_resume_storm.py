"""Many resumes at once into room for three: all restored, in the order in which they came."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
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


class Begun:
    """A resume that was asked for, and when it came into the line: between two moments."""

    def __init__(self, agent: Agent) -> None:
        self._asked_s = time.monotonic()
        answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/resume?wait=0")
        self.operation_id: str = answer.json()["operation_id"]
        agent.try_call("GET", f"/v1/operations/{self.operation_id}")
        # What was begun before this call has had its turn in the daemon before it.
        self._known_s = time.monotonic()

    def let_in_s(self, queued_s: float) -> tuple[float, float]:
        """Return when it was let in: not before the first, and not after the second."""
        return self._asked_s + queued_s, self._known_s + queued_s


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

    begun = [Begun(each) for each in agents]
    operations = [ended(each, one.operation_id) for each, one in zip(agents, begun, strict=True)]

    told = [one["result"] for one in operations]
    assert [one["outcome"] for one in told] == ["restored"] * STORM
    # Each chunk came from disk, once: nothing was computed, and nobody pushed another out.
    assert [one["disk_tokens"] for one in told] == [SESSION_CHUNKS * CHUNK_TOKENS] * STORM
    # Who came first was let in first. Who of those inside ends first is anybody's luck.
    let_in = [one.let_in_s(each["queued_s"]) for one, each in zip(begun, told, strict=True)]
    for (earliest_s, _), (_, latest_s) in pairwise(let_in):
        assert earliest_s <= latest_s
    for number, tokens in expected.items():
        assert take_turn(agents[number - 1], number)["choices"][0]["token_ids"] == tokens
