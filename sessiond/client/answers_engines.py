"""What the daemon answers to operators, and about engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sessiond.client.answers import Cause


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that an engine serves."""

    name: str
    digest: str
    unproven: str


@dataclass(frozen=True)
class KvKind:
    """A kind of KV group, and whether it is supported."""

    kind: str
    what: str
    support: str
    sentence: str


@dataclass(frozen=True)
class SlowPath:
    """A restore path whose loads take longer than computing would."""

    tier: str
    cause: str
    sentence: str
    hint: str
    shares: dict[str, Any]  #: of the time, by stage
    restores: int
    load_s: float
    recompute_s: float
    since_unix_s: float


@dataclass(frozen=True)
class Engine:
    """A live engine."""

    engine_id: str
    url: str
    model: str
    vllm_version: str
    started_unix_s: float
    heartbeat_unix_s: float
    chunk_tokens: int
    chunk_bytes: int
    ram_tier_chunks: int
    max_model_tokens: int
    tier_off: str
    tier_off_reason: str
    attestable: bool
    resets: int
    keeps_replies: bool
    adapters: tuple[Adapter, ...]
    kv_kinds: tuple[KvKind, ...]
    launch: str = ""
    draining: bool = False
    slow_paths: tuple[SlowPath, ...] = ()


@dataclass(frozen=True)
class Stranger:
    """A configured server that is no engine of sessiond's."""

    url: str
    code: str
    detail: str
    hint: str


@dataclass(frozen=True)
class Engines:
    """The engines of the daemon's node, the newest first."""

    engines: tuple[Engine, ...]
    strangers: tuple[Stranger, ...]
    kv_support: tuple[KvKind, ...]


@dataclass(frozen=True)
class Saved:
    """A session whose KV a drain stored."""

    tenant: str
    session_id: str
    generation: int
    tokens: int


@dataclass(frozen=True)
class Unsaved:
    """A session with KV that a drain did not store, or not all of it."""

    tenant: str
    session_id: str
    code: str
    detail: str
    tokens: int
    saved_tokens: int


@dataclass(frozen=True)
class DrainReport:
    """How far a drain came."""

    engine_id: str
    complete: bool
    saved: tuple[Saved, ...]
    unsaved: tuple[Unsaved, ...]
    seconds: float
    causes: tuple[Cause, ...] = ()  #: why the engine may have more than what was found


@dataclass(frozen=True)
class Undrained:
    """An engine that serves as any other."""

    engine_id: str
    was_draining: bool


@dataclass(frozen=True)
class Pause:
    """A pause of all that suspends sessions by itself."""

    by: str
    since_unix_s: float
    reason: str
    until_unix_s: float | None


@dataclass(frozen=True)
class Unpaused:
    """The end of a pause."""

    was_paused: bool
