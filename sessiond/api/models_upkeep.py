"""The JSON of upkeep, health and problems."""

from pydantic import Field

from sessiond.api.models import Answer


class GcOut(Answer):
    """What was removed, and what the store takes now. All sizes are bytes on disk."""

    expired: int = Field(description="Sessions whose snapshots were removed by their TTL.")
    pruned: int = Field(description="Sessions that lost snapshots to newer ones of their own.")
    evicted: int = Field(description="Sessions whose snapshots went to keep a quota or the floor.")
    bytes_freed: int
    segments_removed: int
    frames_freed: int = Field(description="Unused parts of segments that live on.")
    segments_busy: int = Field(description="Unused, but open somewhere; freed later.")
    tenants_held: int = Field(
        description="Tenants of whom nothing can be freed, because a manifest is damaged; "
        "'sessionctl store verify --repair' helps."
    )
    tmp_removed: int = Field(description="Files that dead writers had left.")
    tombstones_removed: int = Field(description="Deleted sessions that nobody knows any more.")
    store_bytes: int = Field(description="What the whole store takes.")
    free_bytes: int = Field(description="Of the file system.")


class HealthOut(Answer):
    """The daemon lives."""

    status: str = Field(examples=["ok"])
    version: str


class ReadyOut(Answer):
    """The daemon can work."""

    status: str = Field(examples=["ready"])
    live_engines: int
    sweeps_paused: bool = Field(description="Whether an operator has paused the idle sweeps.")


class ProblemOut(Answer):
    """An error, as RFC 9457 describes it."""

    type: str = Field(examples=["urn:sessiond:error:session_not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no session 'agent-7'."])
    code: str = Field(description="Stable.", examples=["session_not_found"])
    hint: str
    retryable: bool = Field(description="Whether the call may work later.")
    instance: str | None = Field(
        default=None,
        description="Where an operation is told of that began and failed. Its idempotency key "
        "stands for it: a new attempt needs a new key.",
        examples=["/v1/operations/op-8f2b6c1d9e3a4b5c6d7e8f90"],
    )
