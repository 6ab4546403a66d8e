"""Sessions that come back again and again, for ``sessiond bench planner``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.domain.timing import TurnTiming
from sessiond.testing.agent import Agent


@dataclass
class Returning:
    """A session that comes back again and again with the same prompt: whole chunks and a token."""

    agent: Agent
    prompt: Sequence[int]
    raw_bytes: int = 0

    def policy(self, policy: str) -> None:
        """Set how it is decided for its turns."""
        path = f"/v1/sessions/{self.agent.session_id}"
        self.agent.try_call("PATCH", path, {"plan_policy": policy}).raise_for_status()

    def turn(self) -> TurnTiming:
        """Take a turn, and return what the engine tells of it."""
        ticket = self.agent.ticket()
        answer = self.agent.complete(
            self.prompt,
            cache_salt=ticket["cache_salt"],
            kv_transfer_params=ticket["kv_transfer_params"],
        )
        return TurnTiming.from_json(answer["kv_transfer_params"][ANSWER_PARAM]["timing"])
