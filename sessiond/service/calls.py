"""Calls of OpenAI's interface, and where they go."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.gateway import Headers
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.jsonbody import JsonBody
    from sessiond.domain.reasons import Cause
    from sessiond.engine.streams import StreamAnswer
    from sessiond.service.turns import TurnTicket


class Endpoint(StrEnum):
    """What may be a turn, by its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class Call:
    """One call as its client made it."""

    tenant: TenantId
    endpoint: Endpoint
    session_id: SessionId | None
    body: JsonBody
    headers: Headers  #: names in lower case
    continues: bool = False  #: whether it asks to be continued token for token

    @property
    def model(self) -> str:
        """The model that it names; empty if it names none."""
        named = self.body.get("model")
        return named if isinstance(named, str) else ""

    @property
    def previous_response_id(self) -> str:
        """The response that it goes on with; empty if it does not."""
        if self.endpoint is not Endpoint.RESPONSES:
            return ""
        named = self.body.get("previous_response_id")
        return named if isinstance(named, str) else ""


@dataclass(frozen=True)
class Passage:
    """Where a call goes, and as what."""

    engine: EngineInfo
    ticket: TurnTicket | None = None  #: ``None``: it is no turn, nothing is kept
    unfit: Cause | None = None  #: why it cannot be continued token for token, though asked for
    begun_s: float = field(default_factory=monotonic)  #: before it was sent

    @property
    def plan(self) -> str:
        """What the turn is expected to do with its context."""
        return self.ticket.plan.value if self.ticket else "none"

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why it is not expected to use all of it."""
        return self.ticket.causes if self.ticket else ()

    @property
    def continued(self) -> str:
        """Whether the turn continues its session token for token; empty if nobody asked."""
        found = self.ticket.continuation if self.ticket else None
        cause = self.unfit or (found.cause if found else None)
        if cause is not None:
            return cause.reason.value
        if found is None:
            return ""
        return "same" if found.prompt is None else "continued"


@dataclass(frozen=True)
class Passed:
    """A call that an engine has begun to answer."""

    passage: Passage
    answer: StreamAnswer
    restoring: ExitStack = field(default_factory=ExitStack)  #: closed at its first token
