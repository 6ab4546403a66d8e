"""What turns took, as the engine measures it, against what their client sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.domain.timing import TurnTiming
from sessiond.testing.agent import Agent

CHUNK_TOKENS = 128
KEPT_TOKENS = 5 * CHUNK_TOKENS
PROMPT = range(9000, 9000 + KEPT_TOKENS + 1)  # nobody else's


@dataclass(frozen=True)
class Took:
    """One turn, by both clocks."""

    timing: TurnTiming
    told: dict[str, Any]
    wall_s: float


def turn(agent: Agent, prompt: Sequence[int]) -> Took:
    ticket = agent.ticket()
    began_s = time.perf_counter()
    answer = agent.complete(
        prompt, cache_salt=ticket["cache_salt"], kv_transfer_params=ticket["kv_transfer_params"]
    )
    wall_s = time.perf_counter() - began_s
    told = answer["kv_transfer_params"][ANSWER_PARAM]["timing"]
    return Took(TurnTiming.from_json(told), told, wall_s)


def test_a_turn_tells_what_each_stage_took(agent: Agent, evict: Callable[[], None]) -> None:
    cold = turn(agent, PROMPT)
    shown = agent.show_when(lambda one: one["last_turn"] is not None)
    warm = turn(agent, PROMPT)
    stored_bytes = agent.suspend()["snapshot"]["stored_bytes"]
    evict()
    restored = turn(agent, PROMPT)

    for took in (cold, warm, restored):
        timing = took.timing
        parts_s = timing.lookup_s + timing.queue_s + timing.load_s + timing.waiting_s
        assert parts_s + timing.prefill_s == pytest.approx(timing.ready_s, abs=1e-4)
        assert 0 < timing.prefill_s <= timing.ready_s < took.wall_s
        assert timing.prefill_to_token == len(PROMPT)
        assert timing.queue_s == timing.ram_tokens == timing.others_running == 0
    assert cold.timing.prefill_from_token == 0
    assert warm.timing.prefill_from_token == restored.timing.prefill_from_token == KEPT_TOKENS
    for took in (cold, warm):
        assert took.timing.load_s == took.timing.read_bytes == took.timing.disk_tokens == 0
    assert restored.timing.lookup_s > 0
    assert restored.timing.load_s > 0
    assert restored.timing.read_s + restored.timing.decode_s > 0
    assert restored.timing.read_bytes == stored_bytes
    assert restored.timing.disk_tokens == KEPT_TOKENS

    assert shown["last_turn"]["timing"] == cold.told
    agent.ticket()  # notes the newest turn
    turns = [one["detail"]["timing"] for one in agent.events() if one["kind"] == "turn"]
    assert turns == [cold.told, warm.told, restored.told]
