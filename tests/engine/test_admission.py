"""Resumes that do not fit the RAM tier together take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sessiond.domain.tokens import common_prefix_tokens
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.texts import opening

CHUNK_TOKENS = 128
RAM_CHUNKS = 21
SESSION_CHUNKS = 14  # the RAM tier holds one and a half


@contextmanager
def ordinary_traffic(agent: Agent) -> Iterator[list[Turn]]:
    """Let requests without a ticket, each of its own text, run all the time."""
    served: list[Turn] = []
    begun, stop = threading.Event(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            name = f"{agent.session_id} {len(served)}"
            served.append(agent.turn(opening(name, 300), tokens=2, cache_salt=name))
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(60)
        yield served
    finally:
        stop.set()
        thread.join()


def test_four_resumes_at_once_into_room_for_one_and_a_half_are_all_restored(
    agent: Agent, new_agent: Callable[[], Agent], evict: Callable[[], None]
) -> None:
    agents = [agent, new_agent(), new_agent(), new_agent()]
    messages = [opening(each.session_id, SESSION_CHUNKS * CHUNK_TOKENS) for each in agents]
    stored = []
    for each, asked in zip(agents, messages, strict=True):
        each.ticketed_turn(asked, tokens=1)
        stored.append(each.suspend()["snapshot"]["tokens_restorable"])
    assert all(2 * tokens > RAM_CHUNKS * CHUNK_TOKENS for tokens in stored)
    references = [
        each.turn(asked, tokens=4, cache_salt=each.ticket()["cache_salt"])
        for each, asked in zip(agents, messages, strict=True)
    ]
    evict()

    with ordinary_traffic(new_agent()) as served, ThreadPoolExecutor(4) as pool:
        before = len(served)
        resumed = list(pool.map(Agent.resume, agents))
        during = len(served) - before

    assert [(each["outcome"], each["tokens_restored"]) for each in resumed] == [
        ("restored", tokens) for tokens in stored
    ]
    # Each chunk came from disk, once: nothing of them was there, and nothing was evicted.
    assert [each["disk_tokens"] for each in resumed] == stored
    assert during > 0
    for each, asked, tokens, reference in zip(agents, messages, stored, references, strict=True):
        turn = each.ticketed_turn(asked, tokens=4)
        common = common_prefix_tokens(reference.prompt_token_ids, turn.prompt_token_ids)
        assert turn.cached_tokens == min(tokens, common - common % CHUNK_TOKENS)
        assert turn.token_ids == reference.token_ids
