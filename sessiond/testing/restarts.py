"""A session that was suspended, and what an engine started later makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sessiond.domain.tokens import common_prefix_tokens, whole_chunk_tokens
from sessiond.testing.agent import Agent, Turn
from sessiond.testing.stack import Stack
from sessiond.testing.texts import Messages, continued, opening

CHUNK_TOKENS = 128  # one block of the CPU platform
PROMPT_TOKENS = 700
_TURN_TOKENS = 16
_FRESH_SALT = "fresh"
#: By so much may the log-probabilities of two tokens differ that bf16 takes for equals: where
#: KV was computed in batches of another shape, its last bits differ.
_NEAR_TIE = 0.5


@dataclass(frozen=True)
class Suspended:
    """A session with a snapshot, whose engine was killed."""

    agent: Agent
    first: Turn  #: what was suspended
    messages: Messages  #: of its next turn
    uninterrupted: Turn  #: that turn in the engine that was not yet killed
    stored_tokens: int

    def reusable_tokens(self, turn: Turn) -> int:
        """Return how much of a turn's prompt the snapshot has, in whole chunks."""
        head = self.first.prompt_token_ids + self.first.token_ids
        common = common_prefix_tokens(head, turn.prompt_token_ids)
        return whole_chunk_tokens(min(common, self.stored_tokens), CHUNK_TOKENS)


@dataclass(frozen=True)
class Found:
    """What an engine made of a suspended session."""

    resumed: dict[str, Any]
    turn: Turn  #: the session's next one, with its ticket
    fresh: Turn  #: the same for somebody for whom nothing was kept
    agrees: bool  #: whether both say the same, up to a near tie


def suspend_and_kill(stack: Stack, agent: Agent) -> Suspended:
    """Let an agent's session begin in the engine that runs, suspend it, kill the engine."""
    before = opening(agent.session_id, PROMPT_TOKENS)
    first = agent.ticketed_turn(before, tokens=_TURN_TOKENS)
    messages = continued(before, first.text)
    salt = agent.ticket()["cache_salt"]
    uninterrupted = agent.turn(messages, tokens=_TURN_TOKENS, cache_salt=salt)
    snapshot = agent.suspend()["snapshot"]
    stack.engine.kill()
    return Suspended(agent, first, messages, uninterrupted, snapshot["tokens_restorable"])


def find_out(suspended: Suspended) -> Found:
    """Resume the session in the engine that runs now, and let it take its next turn."""
    agent = suspended.agent
    resumed = agent.resume()
    turn = agent.ticketed_turn(suspended.messages, tokens=_TURN_TOKENS)
    fresh = agent.turn(suspended.messages, tokens=_TURN_TOKENS, cache_salt=_FRESH_SALT)
    return Found(resumed, turn, fresh, _agree(agent, turn, fresh))


def _agree(agent: Agent, one: Turn, other: Turn) -> bool:
    """Whether two turns of one prompt say the same; after a near tie they may part."""
    common = common_prefix_tokens(one.token_ids, other.token_ids)
    if one.prompt_token_ids != other.prompt_token_ids or common == len(one.token_ids):
        return (one.prompt_token_ids, one.token_ids) == (other.prompt_token_ids, other.token_ids)
    answer = agent.complete(
        [*one.prompt_token_ids, *one.token_ids[:common]],
        logprobs=5,
        return_tokens_as_token_ids=True,
        cache_salt=_FRESH_SALT,
    )
    likely = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    both = [likely.get(f"token_id:{turn.token_ids[common]}", -math.inf) for turn in (one, other)]
    return bool(max(likely.values()) - min(both) <= _NEAR_TIE)
