"""The JSON of upkeep, health and problems."""

from pydantic import Field

from sessiond.api.models import Answer


class SweepOut(Answer):
    """What one sweep did."""

    watched: int = Field(description="Sessions that may have KV in an engine.")
    due: int = Field(description="Of them, idle for longer than their timeout.")
    suspended: int
    failed: int


class HealthOut(Answer):
    """The daemon lives."""

    status: str = Field(examples=["ok"])
    version: str


class ReadyOut(Answer):
    """The daemon can work."""

    status: str = Field(examples=["ready"])
    live_engines: int


class ProblemOut(Answer):
    """An error, as RFC 9457 describes it."""

    type: str = Field(examples=["urn:sessiond:error:session_not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no session 'agent-7'."])
    code: str = Field(description="Stable.", examples=["session_not_found"])
    hint: str
    retryable: bool
