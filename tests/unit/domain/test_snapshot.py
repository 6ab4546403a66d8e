from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import SegmentId, SessionId, TenantId
from sessiond.domain.snapshot import ChunkRecord, Manifest
from sessiond.domain.tokens import token_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 4


def a_chunk(group: int, place: int) -> ChunkRecord:
    begin = place * CHUNK
    return ChunkRecord(group, begin, begin + CHUNK, SegmentId("s"), 0, 1, 1, 0, bytes(16))


def a_manifest(chunks: Sequence[ChunkRecord]) -> Manifest:
    tokens = token_ids(range(40))
    return Manifest(
        TenantId("t"),
        SessionId("s"),
        generation=1,
        parent_generation=0,
        engine_id="e",
        adapter_digest="",
        created_unix_s=0.0,
        fingerprint=Fingerprint({}),
        chunk_tokens=CHUNK,
        tokens=tokens,
        chunks=tuple(chunks),
    )


CHUNKS = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=1)


@given(places=CHUNKS, bad=CHUNKS, tokens=st.integers(0, 40))
def test_a_context_is_restored_as_far_as_no_group_lacks_a_chunk(
    places: set[tuple[int, int]], bad: set[tuple[int, int]], tokens: int
) -> None:
    chunks = [a_chunk(*place) for place in sorted(places)]
    manifest = a_manifest(chunks)
    groups = range(manifest.groups.count)
    for without in (set(), bad):
        kept = places - without
        whole = 0
        while (whole + 1) * CHUNK <= tokens and all((group, whole) in kept for group in groups):
            whole += 1
        lacking = [a_chunk(*place) for place in without]
        assert manifest.restorable_up_to(tokens, lacking) == whole * CHUNK
