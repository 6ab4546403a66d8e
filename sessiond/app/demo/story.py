"""The story: a session is suspended, its engine dies, and it comes back."""

from __future__ import annotations

import asyncio.base_events
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessiond.app.demo.report import (
    CorruptFigures,
    IncompatibleFigures,
    Report,
    SnapshotFigures,
)
from sessiond.app.demo.stage import Stage
from sessiond.app.trials import Say, drop_page_cache
from sessiond.connector.versions import vllm_version
from sessiond.domain.tokens import common_prefix_tokens, whole_chunk_tokens
from sessiond.testing.agent import Agent, ChatMessages, Turn
from sessiond.testing.model import MODEL_NAME

_CONTEXT_TOKENS = 7000
_FIRST_TURN_TOKENS = 128
_SECOND_TURN_TOKENS = 64
_FIRST_QUESTION = "Explain in a few sentences what this module is for."
_WARM_UP_REPEATS = 12
_SECOND_QUESTION = "Name one function of it and say what it does."


@dataclass(frozen=True)
class _FirstAct:
    """What the acts after the first one compare with."""

    messages: ChatMessages  #: of the second turn
    first: Turn
    reference: Turn
    suspend: dict[str, Any]

    @property
    def head(self) -> tuple[int, ...]:
        """The tokens that the first turn left."""
        return self.first.prompt_token_ids + self.first.token_ids


@dataclass(frozen=True)
class _SecondAct:
    resume: dict[str, Any]
    resume_call_s: float
    turn: Turn
    recompute: Turn
    page_cache_dropped: bool


def play(stage: Stage, say: Say) -> Report:
    """Play the whole story on *stage* and return what was measured."""
    say("preparing the model")
    stage.prepare()
    say("starting sessiond and the engine")
    stage.start_daemon()
    stage.start_engine(stage.model)
    agent = Agent("demo-agent", stage.daemon_port, stage.engine_port)
    try:
        first = _first_act(agent, say)
        second = _second_act(stage, agent, first, say)
        incompatible = _other_weights(stage, agent, first, say)
        corrupt = _flipped_byte(stage, agent, first, second, say)
    finally:
        agent.close()
    return _report(first, second, incompatible, corrupt)


def _first_act(agent: Agent, say: Say) -> _FirstAct:
    agent.create_session()
    opening = _opening(agent)
    say(f"turn 1: a prompt of {agent.count_tokens(opening):,} tokens")
    first = agent.ticketed_turn(opening, tokens=_FIRST_TURN_TOKENS)
    messages = [
        *opening,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": _SECOND_QUESTION},
    ]
    say("turn 2 without interruption: the reference")
    # Without a ticket, so that the session stays as it was after turn 1.
    reference = agent.turn(
        messages, tokens=_SECOND_TURN_TOKENS, cache_salt=agent.ticket()["cache_salt"]
    )
    say("suspending the session")
    return _FirstAct(messages, first, reference, agent.suspend())


def _second_act(stage: Stage, agent: Agent, first: _FirstAct, say: Say) -> _SecondAct:
    say("SIGKILL to the engine; starting it again")
    stage.engine.kill()
    dropped = drop_page_cache()
    stage.start_engine(stage.model)
    _warm_up(agent)
    dropped = drop_page_cache() and dropped
    say("resuming the session, then turn 2")
    began_s = time.perf_counter()
    resume = agent.resume()
    resume_call_s = time.perf_counter() - began_s
    turn = agent.ticketed_turn(first.messages, tokens=_SECOND_TURN_TOKENS)
    say("the same turn without any reuse: the price of recomputing")
    recompute = agent.turn(
        first.messages, tokens=_SECOND_TURN_TOKENS, cache_salt=secrets.token_hex(16)
    )
    return _SecondAct(resume, resume_call_s, turn, recompute, dropped)


def _warm_up(agent: Agent) -> None:
    """Let the engine load what it loads lazily, so that neither side of the comparison pays it."""
    question = " ".join([_FIRST_QUESTION] * _WARM_UP_REPEATS)  # as long as what a turn adds
    hello: ChatMessages = [{"role": "user", "content": question}]
    agent.turn(hello, tokens=4, cache_salt=secrets.token_hex(16))


def _other_weights(stage: Stage, agent: Agent, first: _FirstAct, say: Say) -> IncompatibleFigures:
    say("other weights under the same path and name; starting the engine with them")
    stage.engine.kill()
    with stage.other_weights():
        stage.start_engine(stage.model)
        resume = agent.resume()
        turn = agent.ticketed_turn(first.messages, tokens=_SECOND_TURN_TOKENS)
        say("the same turn on an engine that never saw a snapshot")
        stage.engine.kill()
        stage.start_plain_engine(stage.model)
        fresh = agent.turn(
            first.messages, tokens=_SECOND_TURN_TOKENS, cache_salt=secrets.token_hex(16)
        )
        stage.engine.kill()
    return IncompatibleFigures(
        outcome=resume["outcome"],
        reason=_first_reason(resume),
        output_matches_fresh_engine=turn.token_ids == fresh.token_ids,
    )


def _flipped_byte(
    stage: Stage, agent: Agent, first: _FirstAct, second: _SecondAct, say: Say
) -> CorruptFigures:
    say("the old weights again, and one flipped byte in the stored snapshot")
    stage.flip_one_byte()
    stage.start_engine(stage.model)
    resume = agent.resume()
    turn = agent.ticketed_turn(first.messages, tokens=_SECOND_TURN_TOKENS)
    stage.engine.kill()
    return CorruptFigures(
        outcome=resume["outcome"],
        reason=_first_reason(resume),
        # The first chunk is bad, so the whole prompt is recomputed, as in the second act: a
        # recompute is compared with a recompute (other batch shapes change the last bits).
        output_identical=turn.token_ids == second.recompute.token_ids,
    )


def _report(
    first: _FirstAct,
    second: _SecondAct,
    incompatible: IncompatibleFigures,
    corrupt: CorruptFigures,
) -> Report:
    snapshot = first.suspend["snapshot"]
    chunk_tokens = snapshot["tokens_restorable"] // snapshot["chunks"]
    common = common_prefix_tokens(first.head, second.turn.prompt_token_ids)
    common = min(common, snapshot["tokens_restorable"])
    resume_ttft_s = second.resume_call_s + second.turn.ttft_s
    return Report(
        model=MODEL_NAME,
        vllm_version=vllm_version(),
        context_tokens=len(second.turn.prompt_token_ids),
        cold_ttft_s=first.first.ttft_s,
        warm_ttft_s=first.reference.ttft_s,
        resume_call_s=second.resume_call_s,
        resume_ttft_s=resume_ttft_s,
        recompute_ttft_s=second.recompute.ttft_s,
        speedup=second.recompute.ttft_s / resume_ttft_s,
        resume_outcome=second.resume["outcome"],
        restorable_tokens=whole_chunk_tokens(common, chunk_tokens),
        cached_tokens=second.turn.cached_tokens,
        output_identical=second.turn.token_ids == first.reference.token_ids,
        page_cache_dropped=second.page_cache_dropped,
        snapshot=SnapshotFigures(
            tokens=snapshot["tokens_restorable"],
            chunks=snapshot["chunks"],
            raw_bytes=snapshot["raw_bytes"],
            stored_bytes=snapshot["stored_bytes"],
            seconds=first.suspend["seconds"],
        ),
        incompatible=incompatible,
        corrupt=corrupt,
    )


def _opening(agent: Agent) -> ChatMessages:
    """Return the first messages: real text (a standard library module) of the wanted length."""
    text = Path(asyncio.base_events.__file__).read_text()
    messages: ChatMessages = []
    chars = 4 * _CONTEXT_TOKENS
    for _ in range(4):  # tokens per character vary little: a few corrections are enough
        content = f"{text[:chars]}\n\n{_FIRST_QUESTION}"
        messages = [{"role": "user", "content": content}]
        chars = chars * _CONTEXT_TOKENS // agent.count_tokens(messages)
    return messages


def _first_reason(report: dict[str, Any]) -> str:
    causes = report["causes"]
    return str(causes[0]["reason"]) if causes else ""
