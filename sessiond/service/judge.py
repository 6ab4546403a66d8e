"""The pure rules: what covers a head, what a resume amounts to, who is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.fingerprint import FieldClass, Fingerprint
from sessiond.domain.outcomes import Outcome
from sessiond.domain.session import (
    NEVER_IDLE_S,
    Presence,
    Session,
    SessionState,
    derive_state,
)
from sessiond.domain.snapshot import Manifest, SnapshotSummary
from sessiond.domain.tokens import common_prefix_tokens, whole_chunk_tokens

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.heads import Branch

#: A request needs room for its first token after the prompt, and for the one that it samples.
_REQUEST_TOKENS = 2


def movable_tokens(kv_tokens: int, chunk_tokens: int, max_model_tokens: int) -> int:
    """Return how many tokens one request of this engine can move: whole chunks only."""
    return whole_chunk_tokens(
        max(0, min(kv_tokens, max_model_tokens - _REQUEST_TOKENS)), chunk_tokens
    )


def storable_tokens(branch: Branch, engine: EngineInfo) -> int:
    """Return how many tokens of a branch can be moved from this engine: whole chunks only."""
    kept = branch.kv_tokens
    if not engine.keeps_replies:
        kept = min(kept, branch.split.prompt_tokens)
    return movable_tokens(kept, engine.chunk_tokens, engine.max_model_tokens)


def kept_tokens(manifest: Manifest, branch: Branch, tokens: int, live: Fingerprint) -> int:
    """Return how many of the first *tokens* tokens of *branch* a snapshot holds already.

    Whole chunks only, and none if the KV of *live* has other bytes. A tokenizer or a template
    does not matter here: the tokens themselves are compared.
    """
    alike = manifest.bytes_digest == live.digest(FieldClass.BYTES)
    if not alike or manifest.adapter_digest != branch.adapter_digest:
        return 0
    common = common_prefix_tokens(manifest.tokens, branch.tokens)
    return whole_chunk_tokens(manifest.restorable_up_to(min(common, tokens)), manifest.chunk_tokens)


def summarize(
    manifest: Manifest, parent: Manifest | None, model: str, seconds: float
) -> SnapshotSummary:
    """Return what the interfaces tell of *manifest*; what its *parent* has too is shared.

    A fork's first snapshot has shared everything.
    """
    known = parent.segment_ids if parent else frozenset()
    if manifest.forked_from is not None:
        known = manifest.segment_ids
    shared = sum(c.stored_bytes for c in manifest.chunks if c.segment_id in known)
    return SnapshotSummary(
        generation=manifest.generation,
        parent_generation=manifest.parent_generation,
        created_unix_s=manifest.created_unix_s,
        tokens_total=len(manifest.tokens),
        tokens_restorable=manifest.restorable_tokens,
        chunks=len(manifest.chunks),
        raw_bytes=manifest.raw_bytes,
        stored_bytes=manifest.stored_bytes,
        new_bytes=manifest.stored_bytes - shared,
        shared_bytes=shared,
        seconds=seconds,
        engine_id=manifest.engine_id,
        model=model,
        lossy=manifest.loss,
    )


def conclude(target_tokens: int, restored_tokens: int, disk_tokens: int) -> Outcome:
    """Return what a resume amounts to, by what was proven."""
    if restored_tokens <= 0:
        return Outcome.RECOMPUTED
    if restored_tokens < target_tokens:
        return Outcome.PARTIAL
    return Outcome.RESTORED if disk_tokens else Outcome.WARM


def is_due(
    session: Session, presence: Presence, default_timeout_s: float, now_unix_s: float
) -> bool:
    """Whether the idle sweep should suspend the session at *now_unix_s*.

    Idle means: no turn in flight, and the timeout has passed since the last token.
    """
    if not is_sweepable(session, presence):
        return False
    timeout_s = default_timeout_s if session.idle_timeout_s is None else session.idle_timeout_s
    return now_unix_s - presence.idle_since_unix_s >= timeout_s


def is_due_in_window(
    session: Session, presence: Presence, idle_s: float, now_unix_s: float
) -> bool:
    """Whether a window that wants *idle_s* suspends the session at *now_unix_s*.

    A longer timeout of the session's own does not count then, unless it means never.
    """
    own_s = session.idle_timeout_s
    if not is_sweepable(session, presence) or (own_s is not None and own_s >= NEVER_IDLE_S):
        return False
    return now_unix_s - presence.idle_since_unix_s >= idle_s


def is_sweepable(session: Session, presence: Presence) -> bool:
    """Whether there is KV that a suspend would store, and no turn in flight."""
    return derive_state(session, presence) is SessionState.ACTIVE and not presence.unkept
