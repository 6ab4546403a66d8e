"""Forks: the first snapshot of a new session, of another one's chunks. No KV is written."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreCorruptError
from sessiond.domain.snapshot import Origin
from sessiond.store.fences import Fence, no_fence

if TYPE_CHECKING:
    from collections.abc import Collection

    from sessiond.domain.ids import SegmentId, SessionId
    from sessiond.domain.snapshot import ChunkRecord, Manifest
    from sessiond.store.store import Store

#: Of a fork; its own suspends go on from there.
FIRST_GENERATION = 1


def fork_snapshot(
    store: Store, source: Manifest, session: SessionId, fence: Fence = no_fence
) -> Manifest:
    """Commit the first snapshot of *session*, of the same tenant, with the chunks of *source*.

    Their segments are locked until it is durable, so that nothing collects them meanwhile,
    whatever becomes of the source. A chunk that must not be used any more is left out, with
    what a resume could not reach without it.

    :param fence: raises if nothing may be committed any more
    :raises SnapshotNotFoundError: the source was deleted meanwhile, or none of it can be used.
    :raises GenerationExistsError: the session has a snapshot.
    :raises SessionNotFoundError: the session was deleted.
    :raises StoreError: nothing was committed.
    """
    with contextlib.ExitStack() as locks:
        bad = _unusable(store, source, locks)
        manifest = replace(
            source,
            session=session,
            generation=FIRST_GENERATION,
            parent_generation=0,
            created_unix_s=time.time(),
            chunks=_without(source, bad),
            forked_from=Origin(source.session, source.generation),
        )
        if not manifest.restorable_tokens:
            raise SnapshotNotFoundError(
                f"Nothing of generation {source.generation} can be used any more."
            )
        store.commit_manifest(manifest, fence=fence)
    return manifest


def _unusable(store: Store, source: Manifest, locks: contextlib.ExitStack) -> set[ChunkRecord]:
    """Lock the source's segments; return its chunks that are gone, or noted as bad."""
    noted: dict[SegmentId, Collection[int] | None] = {}
    for segment_id in source.segment_ids:
        noted[segment_id] = None
        # What only fails now, such as too many open files, must not cost the fork its chunks.
        with contextlib.suppress(SnapshotNotFoundError, StoreCorruptError):
            locks.enter_context(store.open_segment(segment_id))
            # Under the lock: what is not noted as freed now is not freed before it goes.
            noted[segment_id] = store.bad_chunks(segment_id)
    return {chunk for chunk in source.chunks if _is_noted(chunk, noted[chunk.segment_id])}


def _is_noted(chunk: ChunkRecord, offsets: Collection[int] | None) -> bool:
    return offsets is None or chunk.offset_bytes in offsets


def _without(source: Manifest, bad: Collection[ChunkRecord]) -> tuple[ChunkRecord, ...]:
    """Return the chunks without *bad*, and without those beyond a gap where there must be none."""
    groups, gaps = source.groups, dict[int, int]()
    for chunk in bad:
        if groups.keeps_all(chunk.group):
            gaps[chunk.group] = min(chunk.start_token, gaps.get(chunk.group, chunk.start_token))
    return tuple(
        chunk
        for chunk in source.chunks
        if chunk not in bad and chunk.start_token < gaps.get(chunk.group, chunk.end_token)
    )
