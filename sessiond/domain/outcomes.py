"""What really happened in a suspend or a resume."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessiond.domain.ids import EngineId
from sessiond.domain.loss import SnapshotLoss
from sessiond.domain.plans import Plan
from sessiond.domain.reasons import Cause
from sessiond.domain.snapshot import SnapshotSummary
from sessiond.domain.timing import TurnTiming


class Outcome(StrEnum):
    """The five ends of a resume."""

    WARM = "warm"  #: the KV was still in the engine
    RESTORED = "restored"
    PARTIAL = "partial"
    #: Nothing was loaded; the next turn computes its prompt, or loads what its own tokens allow.
    RECOMPUTED = "recomputed"
    FAILED = "failed"


@dataclass(frozen=True)
class SuspendReport:
    """The answer to a suspend."""

    snapshot: SnapshotSummary
    rounds: int
    #: Of the head's whole chunks, not in the snapshot; and those that ended with their engine.
    missing_tokens: int
    causes: tuple[Cause, ...]
    seconds: float
    evicted_tokens: int = 0  #: of them, gone from the engine before any snapshot had them
    recomputed_tokens: int = 0  #: that the engine computed again for this suspend


@dataclass(frozen=True)
class ResumeReport:
    """The answer to a resume. ``tokens_restored`` counts VRAM, RAM and disk together."""

    outcome: Outcome
    causes: tuple[Cause, ...]
    engine_id: EngineId
    generation: int
    tokens_total: int
    tokens_restorable: int
    tokens_restored: int
    disk_tokens: int
    seconds: float
    queued_s: float = 0.0  #: of them, until other resumes had made room
    plan: Plan | None = None  #: ``None``: there was nothing to decide
    timing: TurnTiming | None = None  #: of its last request that moved something
    lossy: SnapshotLoss | None = None  #: of the snapshot; ``None``: its KV is as it was
    noted: tuple[Cause, ...] = ()  #: what differs, and kept nothing from being used
