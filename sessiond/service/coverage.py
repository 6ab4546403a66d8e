"""Which of a head's branches a suspend takes, and how much of it is stored already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreError
from sessiond.domain.heads import Branch, TurnSplit
from sessiond.domain.lines import continues, outdoes
from sessiond.domain.tokens import common_prefix_tokens
from sessiond.service.judge import kept_tokens, storable_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.heads import Head
    from sessiond.domain.ids import SegmentId
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.store import Store


@dataclass(frozen=True)
class Coverage:
    """A branch beside the newest snapshot."""

    branch: Branch
    tokens: int  #: that a suspend can move, in whole chunks
    kept_tokens: int  #: of them, those that the snapshot has and that can be read
    is_side_call: bool = False  #: beside the conversation that the snapshot has: none is moved


def cover(store: Store, engine: EngineInfo, head: Head, newest: Manifest | None) -> Coverage | None:
    """Return what a suspend of *head* is about; ``None`` without a branch.

    :raises StoreError: the store cannot be read.
    """
    branch = choose(head, [one for one in head.branches if storable_tokens(one, engine)], newest)
    if branch is None:
        return None
    if newest is not None and branch is head.main and not _leads(head, branch, newest):
        return Coverage(branch, 0, 0, is_side_call=True)
    tokens = storable_tokens(branch, engine)
    kept = kept_tokens(newest, branch, tokens, engine.fingerprint) if newest else 0
    return Coverage(branch, tokens, _sound_tokens(store, newest, kept) if newest else 0)


def choose(head: Head, movable: Sequence[Branch], newest: Manifest | None) -> Branch | None:
    """Return the branch that a suspend takes, of those of *head* that can be moved.

    The main one, unless the newest snapshot has it. Then the one that is in the snapshot: a side
    call that came later must not take the place of what is stored.
    """
    main = head.main
    if newest is None or main is None or not movable:
        return movable[0] if movable and newest is None else main
    had_a_turn = main.updated_unix_s > _stored_unix_s(head, newest)
    if movable[0] is main and had_a_turn and _common_tokens(newest, main) < main.kv_tokens:
        return main
    return max(movable, key=lambda one: _common_tokens(newest, one))


def is_newer(head: Head, newest: Manifest) -> bool:
    """Whether the head's main branch became the conversation after what the snapshot is of."""
    main = head.main
    if main is None:
        return False
    # A turn may end while the state before it is stored.
    meanwhile = main.split.prompt_tokens > len(newest.tokens)
    had_a_turn = meanwhile or main.updated_unix_s > _stored_unix_s(head, newest)
    return had_a_turn and _leads(head, main, newest)


def _leads(head: Head, main: Branch, newest: Manifest) -> bool:
    """Whether the main branch may take the place of the newest snapshot."""
    stored = _branch_of(newest, _stored_unix_s(head, newest))
    alike = (one for one in head.branches if one.adapter_digest == stored.adapter_digest)
    before = (one for one in alike if one.updated_unix_s < main.updated_unix_s)
    if any(one.tokens == stored.tokens for one in before):
        return True  # the engine had both, and this one leads
    return outdoes(main, stored)


def _stored_unix_s(head: Head, newest: Manifest) -> float:
    """Return by when a snapshot's line had what it has: turns may have ended before its commit."""
    made_unix_s = newest.created_unix_s
    if head.engine_id != newest.engine_id:
        return made_unix_s
    stored = _branch_of(newest, made_unix_s)
    line = (one for one in head.branches if continues(one, stored))
    return min([made_unix_s, *(one.updated_unix_s for one in line)])


def _branch_of(manifest: Manifest, at_unix_s: float) -> Branch:
    return Branch(manifest.tokens, manifest.adapter_digest, "", at_unix_s, TurnSplit())


def _common_tokens(newest: Manifest, branch: Branch) -> int:
    """Return how many tokens of a branch a snapshot has KV for, of the same adapter."""
    if newest.adapter_digest != branch.adapter_digest:
        return 0
    return common_prefix_tokens(newest.tokens, branch.tokens)


def _sound_tokens(store: Store, manifest: Manifest, tokens: int) -> int:
    """Return how many of the first *tokens* tokens can be restored without damaged chunks."""
    bad_offsets: dict[SegmentId, set[int] | None] = {}
    bad = set()
    for chunk in manifest.chunks:
        if chunk.segment_id not in bad_offsets:
            bad_offsets[chunk.segment_id] = _bad_chunks(store, chunk.segment_id)
        offsets = bad_offsets[chunk.segment_id]
        if offsets is None or chunk.offset_bytes in offsets:
            bad.add(chunk)
    return manifest.restorable_up_to(tokens, bad)


def _bad_chunks(store: Store, segment_id: SegmentId) -> set[int] | None:
    """Return the offsets that must not be used; ``None``: all of the segment."""
    try:
        with store.open_segment(segment_id):
            return store.bad_chunks(segment_id)
    except (StoreError, SnapshotNotFoundError):
        return None
