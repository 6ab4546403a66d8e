"""What may be given to calls."""

from __future__ import annotations

from typing import TypedDict


class SessionChanges(TypedDict, total=False):
    """What can be changed of a session; ``None`` means the daemon's default."""

    idle_timeout_s: float | None
    ttl_s: float | None
    pinned: bool
    on_evicted: str | None  #: prefix, recompute or skip
    plan_policy: str | None  #: auto, always_load, never_load or objective
    objective_s: float | None


class SessionOptions(SessionChanges, total=False):
    """What a new session has."""

    model: str  #: empty: whichever an engine serves
