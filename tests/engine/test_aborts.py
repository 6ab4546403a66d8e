"""Whoever hangs up in the middle of a suspend or resume leaves nothing half done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sessiond.domain.engines import EngineInfo
from sessiond.domain.heads import Branch
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.keys import KeyRing
from sessiond.domain.tickets import TICKET_PARAM
from sessiond.service.permits import Permit, Purpose, Signer
from sessiond.store.store import Store
from sessiond.testing.agent import Agent
from sessiond.testing.servers import session_members
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import opening

CHUNK_TOKENS = 128
_PATIENCE_S = 20.0


@pytest.fixture
def signer(keys: KeyRing) -> Signer:
    return Signer(keys, lifetime_s=60, turn_lifetime_s=60)


def engine_of(store: Store) -> EngineInfo:
    (engine,) = store.live_engines()
    return engine


def head_of(agent: Agent, store: Store) -> Branch:
    """Return what the last turn left, as soon as the mover has written it."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        heads = store.read_heads(DEFAULT_TENANT, SessionId(agent.session_id))
        if heads and heads[0].branches and not heads[0].turns_in_flight:
            return heads[0].branches[0]
        time.sleep(0.05)
    raise AssertionError("the head was not written")


def whole_chunks(tokens: int) -> int:
    return tokens - tokens % CHUNK_TOKENS


def body_of(prompt: Sequence[int], permit: Permit, max_tokens: int) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "prompt": list(prompt),
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": permit.cache_salt,
        "kv_transfer_params": {TICKET_PARAM: permit.ticket},
        "max_tokens": max_tokens,
    }


def hang_up_while_computing(stack: Stack, body: dict[str, Any]) -> None:
    """Close the connection when the first tokens have come: the chunks were handed over."""
    url = f"http://127.0.0.1:{stack.engine_port}/v1/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as answer:
        assert answer.status_code == httpx.codes.OK
        lines = (line for line in answer.iter_lines() if line)
        for _ in range(3):
            next(lines)


def hang_up_after(stack: Stack, body: dict[str, Any], seconds: float) -> bool:
    """Close the connection after so long; whether there was no answer yet."""
    url = f"http://127.0.0.1:{stack.engine_port}/v1/completions"
    try:
        httpx.post(url, json=body, timeout=httpx.Timeout(60, read=seconds)).raise_for_status()
    except httpx.ReadTimeout:
        return True
    return False


@contextmanager
def stopped_mover(stack: Stack) -> Iterator[None]:
    """Let the mover do nothing for a moment."""
    (pid,) = (
        pid
        for pid in session_members(stack.engine.pid)
        if b"sessiond.connector.mover" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def settled(agent: Agent, companion: Permit) -> dict[str, Any]:
    """Return what the companion request learns."""
    answer = agent.complete(
        [1],
        cache_salt=companion.cache_salt,
        kv_transfer_params={TICKET_PARAM: companion.ticket},
    )
    ours: dict[str, Any] = answer["kv_transfer_params"]["sessiond"]
    return ours


@pytest.mark.parametrize("when", ["waiting", "computing"])
def test_an_aborted_suspend_commits_nothing_and_the_next_one_works(
    stack: Stack, agent: Agent, store: Store, signer: Signer, when: str
) -> None:
    agent.ticketed_turn(opening(agent.session_id, 700), tokens=10)
    branch = head_of(agent, store)
    session = SessionId(agent.session_id)
    purpose = Purpose(DEFAULT_TENANT, session, engine_of(store), generation=1)
    moving, companion = signer.suspend(purpose, branch, time.time())
    prompt = branch.tokens[: whole_chunks(len(branch.tokens) - 1) + 1]

    if when == "computing":
        # Its chunks are handed over with its first step; it goes on for very long.
        hang_up_while_computing(stack, body_of(prompt, moving, max_tokens=3000))
    else:
        with stopped_mover(stack):
            assert hang_up_after(stack, body_of(prompt, moving, max_tokens=1), 0.7)

    ours = settled(agent, companion)
    assert not ours["committed"]
    assert [cause["reason"] for cause in ours["causes"]] == ["aborted"]
    assert store.generations(DEFAULT_TENANT, session) == []
    report = agent.suspend()
    assert (report["missing_tokens"], report["snapshot"]["generation"]) == (0, 1)
    assert list((store.root / "tmp").iterdir()) == []
    referenced = store.read_manifest(DEFAULT_TENANT, session, 1).segment_ids
    written = {
        path.stem
        for path in (store.root / "segments").rglob("*.seg")
        if path.stat().st_mtime >= branch.updated_unix_s
    }
    assert written == set(referenced)


def test_an_aborted_resume_leaves_the_next_one_whole(
    stack: Stack, agent: Agent, store: Store, signer: Signer, evict: Callable[[], None]
) -> None:
    messages = opening(agent.session_id, 1500)
    agent.ticketed_turn(messages, tokens=8)
    reference = agent.turn(messages, tokens=8, cache_salt=agent.ticket()["cache_salt"])
    stored = agent.suspend()["snapshot"]["tokens_restorable"]
    evict()
    session = SessionId(agent.session_id)
    prompt = store.read_manifest(DEFAULT_TENANT, session, 1).tokens[: stored + 1]
    purpose = Purpose(DEFAULT_TENANT, session, engine_of(store), 1, restorable_tokens=stored)

    moving, companion = signer.resume(purpose, time.time())
    with stopped_mover(stack):
        assert hang_up_after(stack, body_of(prompt, moving, max_tokens=1), 0.7)
    ours = settled(agent, companion)
    assert (ours["loadable_tokens"], ours["causes"][0]["reason"]) == (0, "aborted")
    aborted = 0
    for seconds in (0.01, 0.03, 0.06, 0.1):  # somewhere in the midst of opening and loading
        moving, _ = signer.resume(purpose, time.time())
        aborted += hang_up_after(stack, body_of(prompt, moving, max_tokens=1), seconds)
    assert aborted > 0

    stack.clear_vram()
    resumed = agent.resume()
    turn = agent.ticketed_turn(messages, tokens=8)

    assert (resumed["outcome"], resumed["tokens_restored"]) in (
        ("restored", stored),
        ("warm", stored),  # the last one had everything in RAM when it was cancelled
    )
    assert turn.cached_tokens == stored
    assert turn.token_ids == reference.token_ids
