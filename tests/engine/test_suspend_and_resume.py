"""What a session keeps and gets back, on the real engine."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.tokens import common_prefix_tokens
from sessiond.store.store import Store
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.files import flip_byte
from sessiond.testing.stack import Stack
from sessiond.testing.texts import Messages, continued, opening

CHUNK_TOKENS = 128
RAM_CHUNKS = 21


def head_tokens(turn: Turn) -> tuple[int, ...]:
    return turn.prompt_token_ids + turn.token_ids


def whole_chunks(tokens: int) -> int:
    return tokens - tokens % CHUNK_TOKENS


def second_turn(agent: Agent, messages: Messages) -> Turn:
    return agent.ticketed_turn(messages, tokens=16)


def reference_turn(agent: Agent, messages: Messages) -> Turn:
    return agent.turn(messages, tokens=16, cache_salt=agent.ticket()["cache_salt"])


def test_a_session_comes_back_with_the_same_tokens(agent: Agent, evict: Callable[[], None]) -> None:
    before = opening(agent.session_id, 900)
    first = agent.ticketed_turn(before, tokens=32)
    messages = continued(before, first.text)
    reference = reference_turn(agent, messages)
    suspended = agent.suspend()
    evict()

    resumed = agent.resume()
    turn = second_turn(agent, messages)

    stored = whole_chunks(len(head_tokens(first)) - 1)
    assert suspended["snapshot"]["tokens_restorable"] == stored
    assert suspended["snapshot"]["chunks"] == stored // CHUNK_TOKENS
    assert suspended["missing_tokens"] == 0
    assert (resumed["outcome"], resumed["tokens_restored"]) == ("restored", stored)
    assert resumed["disk_tokens"] == stored
    common = common_prefix_tokens(head_tokens(first), turn.prompt_token_ids)
    assert turn.cached_tokens == min(stored, whole_chunks(common))
    assert turn.token_ids == reference.token_ids


def test_a_turn_restores_by_itself(agent: Agent, evict: Callable[[], None]) -> None:
    before = opening(agent.session_id, 900)
    first = agent.ticketed_turn(before, tokens=32)
    messages = continued(before, first.text)
    reference = reference_turn(agent, messages)
    agent.suspend()
    evict()

    ticket = agent.ticket()
    turn = second_turn(agent, messages)

    assert ticket["generation"] == 1
    common = common_prefix_tokens(head_tokens(first), turn.prompt_token_ids)
    assert turn.cached_tokens == whole_chunks(min(common, len(head_tokens(first)) - 1))
    assert turn.token_ids == reference.token_ids


def test_a_session_that_is_still_in_vram_is_warm(agent: Agent) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    agent.suspend()

    resumed = agent.resume()

    assert (resumed["outcome"], resumed["disk_tokens"]) == ("warm", 0)


def test_a_second_suspend_writes_only_what_is_new(agent: Agent, evict: Callable[[], None]) -> None:
    before = opening(agent.session_id, 700)
    first = agent.ticketed_turn(before, tokens=10)
    one = agent.suspend()["snapshot"]
    messages = continued(before, first.text, "Now explain this: " + "why, and how, " * 70)
    second = agent.ticketed_turn(messages, tokens=10)

    two = agent.suspend()["snapshot"]

    assert (two["generation"], two["parent_generation"]) == (2, 1)
    assert two["chunks"] > one["chunks"]
    shared = whole_chunks(
        min(common_prefix_tokens(head_tokens(first), head_tokens(second)), len(head_tokens(first)))
    )
    shared_chunks = min(shared // CHUNK_TOKENS, one["chunks"])
    assert two["raw_bytes"] // two["chunks"] * two["chunks"] == two["raw_bytes"]
    assert two["shared_bytes"] == pytest.approx(
        one["stored_bytes"] * shared_chunks / one["chunks"], rel=0.1
    )
    assert two["new_bytes"] + two["shared_bytes"] == two["stored_bytes"]
    evict()
    assert agent.resume()["outcome"] == "restored"


def test_a_suspend_of_what_is_stored_already_writes_nothing(agent: Agent) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    first = agent.suspend()

    again = agent.suspend()

    assert first["snapshot"]["new_bytes"] > 0
    assert again["snapshot"]["generation"] == first["snapshot"]["generation"]
    assert again["rounds"] == 0


def test_a_session_larger_than_the_ram_tier_moves_in_rounds(
    agent: Agent, evict: Callable[[], None]
) -> None:
    before = opening(agent.session_id, 36 * CHUNK_TOKENS)
    first = agent.ticketed_turn(before, tokens=10)
    stored = whole_chunks(len(head_tokens(first)) - 1)
    assert stored > 30 * CHUNK_TOKENS > RAM_CHUNKS * CHUNK_TOKENS
    messages = continued(before, first.text)
    reference = reference_turn(agent, messages)

    suspended = agent.suspend()

    assert suspended["rounds"] >= 2
    assert suspended["snapshot"]["tokens_restorable"] == stored
    evict()
    takes_what_fits_the_ram_tier_and_says_so(agent, head_tokens(first))
    evict()

    resumed = agent.resume()
    turn = second_turn(agent, messages)

    assert (resumed["outcome"], resumed["tokens_restored"]) == ("restored", stored)
    assert turn.token_ids == reference.token_ids


def takes_what_fits_the_ram_tier_and_says_so(agent: Agent, prompt: tuple[int, ...]) -> None:
    """One request for more than the RAM tier holds."""
    ticket = agent.ticket()

    answer = agent.complete(
        prompt,
        cache_salt=ticket["cache_salt"],
        kv_transfer_params=ticket["kv_transfer_params"],
    )

    ours = answer["kv_transfer_params"]["sessiond"]
    assert ours["split"]["disk_tokens"] == RAM_CHUNKS * CHUNK_TOKENS
    assert [cause["reason"] for cause in ours["causes"]] == ["ram_tier_too_small"]
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == RAM_CHUNKS * CHUNK_TOKENS


@pytest.mark.parametrize("chunk", [0, 3])
def test_a_flipped_byte_is_noticed(
    agent: Agent, store: Store, evict: Callable[[], None], chunk: int
) -> None:
    agent.ticketed_turn(opening(agent.session_id, 900), tokens=10)
    agent.suspend()
    manifest = store.read_manifest(DEFAULT_TENANT, SessionId(agent.session_id), 1)
    record = manifest.chunks[chunk]
    segment = store.root / "segments" / record.segment_id[:2] / f"{record.segment_id}.seg"
    flip_byte(segment, record.offset_bytes + record.stored_bytes // 2)
    evict()

    resumed = agent.resume()

    assert resumed["outcome"] == ("partial" if chunk else "recomputed")
    assert resumed["reason"] == "snapshot_corrupt"
    assert resumed["tokens_restored"] == chunk * CHUNK_TOKENS
    # Known from now on: a ticketed turn asks for nothing behind the bad chunk.
    assert store.bad_chunks(record.segment_id) == {record.offset_bytes}


def test_a_missing_segment_is_named(agent: Agent, store: Store, evict: Callable[[], None]) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    agent.suspend()
    manifest = store.read_manifest(DEFAULT_TENANT, SessionId(agent.session_id), 1)
    segment_id = manifest.chunks[0].segment_id
    (store.root / "segments" / segment_id[:2] / f"{segment_id}.seg").unlink()
    evict()

    resumed = agent.resume()

    assert (resumed["outcome"], resumed["reason"]) == ("recomputed", "snapshot_missing")


def test_evicted_kv_is_suspended_as_far_as_it_is_there(
    agent: Agent, stack: Stack, evict: Callable[[], None]
) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    evict()

    answer = agent.try_call("POST", f"/v1/sessions/{agent.session_id}/suspend")

    assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert answer.json()["code"] == "nothing_to_suspend"
    assert stack.engine.is_running()


def test_a_diverging_prompt_uses_the_common_prefix(agent: Agent, evict: Callable[[], None]) -> None:
    before = opening(agent.session_id, 900)
    first = agent.ticketed_turn(before, tokens=10)
    agent.suspend()
    evict()
    text = before[0]["content"]
    changed = [{"role": "user", "content": text[: len(text) // 2] + "!" + text[len(text) // 2 :]}]

    turn = second_turn(agent, changed)

    common = common_prefix_tokens(first.prompt_token_ids, turn.prompt_token_ids)
    assert 0 < turn.cached_tokens == whole_chunks(common)
