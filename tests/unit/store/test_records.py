"""Manifests, heads, session and engine files as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.engines import EngineInfo, ServedAdapter, SharedFile
from sessiond.domain.errors import StoreCorruptError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit
from sessiond.domain.ids import EngineId, SegmentId, SessionId, TenantId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.snapshot import ChunkRecord, Manifest, Origin
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import token_ids
from sessiond.store import sealed
from sessiond.store.engines import pack_engine, unpack_engine
from sessiond.store.heads import pack_head, unpack_head
from sessiond.store.manifests import fault_of, pack_manifest, unpack_manifest
from sessiond.store.sessions import SessionRecord, pack_session, tombstone, unpack_session
from sessiond.testing.snapshots import SnapshotPlan, a_fingerprint, a_key_ring, manifest_of_plan

KEYS = a_key_ring()
COUNTS = st.integers(0, 2**40)
TIMES = st.floats(0, 2e9)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=50).map(token_ids)
SEGMENTS = [SegmentId(f"{number:032x}") for number in range(3)]


@st.composite
def chunk_lists(draw: st.DrawFn, tokens: int) -> list[ChunkRecord]:
    chunks = []
    for group in range(draw(st.integers(0, 2))):
        ends = sorted(draw(st.sets(st.integers(1, max(1, tokens)), max_size=4)))
        for start, end in zip([0, *ends], ends, strict=False):
            raw = draw(st.integers(1, 1 << 30))
            chunks.append(
                ChunkRecord(
                    group, start, end, draw(st.sampled_from(SEGMENTS)),
                    draw(st.integers(1, 2**40)) * 4096, draw(st.integers(1, raw)), raw,
                    draw(st.sampled_from([0, 1, 2, 9])),
                    draw(st.binary(min_size=16, max_size=16)),
                )
            )  # fmt: skip
    return draw(st.permutations(chunks))


ORIGINS = st.none() | st.builds(Origin, NAMES.map(SessionId), COUNTS)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tokens = draw(TOKENS.filter(bool))
    generation = draw(st.integers(1, 2**40))
    return Manifest(
        tenant=TenantId(draw(NAMES)),
        session=SessionId(draw(NAMES)),
        generation=generation,
        parent_generation=draw(st.integers(0, generation - 1)),
        engine_id=draw(NAMES),
        adapter_digest=draw(NAMES),
        created_unix_s=draw(TIMES),
        fingerprint=a_fingerprint(draw(NAMES)),
        chunk_tokens=draw(st.integers(1, 4096)),
        tokens=tokens,
        chunks=tuple(draw(chunk_lists(len(tokens)))),
        wrapped_keys=((SEGMENTS[0], draw(st.binary(max_size=60))),),
        forked_from=draw(ORIGINS),
    )


@given(manifests())
def test_manifests_round_trip(manifest: Manifest) -> None:
    assert unpack_manifest(pack_manifest(manifest, KEYS), KEYS) == manifest


SPLITS = st.builds(TurnSplit, COUNTS, COUNTS, COUNTS, COUNTS)
TIMINGS = st.builds(TurnTiming, load_s=TIMES, read_bytes=COUNTS, prefill_to_token=COUNTS)
LAST_TURNS = st.builds(
    LastTurn,
    ended_unix_s=TIMES,
    split=st.none() | SPLITS,
    tokens_total=COUNTS,
    tokens_restorable=COUNTS,
    diverged_at_token=st.none() | COUNTS,
    causes=st.lists(
        st.builds(Cause, st.sampled_from(Reason), NAMES, NAMES, st.lists(COUNTS)), max_size=2
    ).map(tuple),
    turn_id=NAMES,
    timing=st.none() | TIMINGS,
)
HEADS = st.builds(
    Head,
    tenant=NAMES,
    session=NAMES,
    engine_id=NAMES,
    sequence=COUNTS,
    turns_in_flight=COUNTS,
    updated_unix_s=TIMES,
    branches=st.lists(
        st.builds(
            Branch,
            tokens=TOKENS,
            adapter_digest=NAMES,
            cache_salt_hash=NAMES,
            updated_unix_s=TIMES,
            split=SPLITS,
            adapter_name=NAMES,
            began_unix_s=TIMES,
        ),
        max_size=4,
    ).map(tuple),
    last_turn=st.none() | LAST_TURNS,
    unkept=NAMES,
    session_created_unix_us=COUNTS,
)


@given(HEADS)
def test_heads_round_trip(head: Head) -> None:
    assert unpack_head(pack_head(head, KEYS), KEYS) == head


def test_a_head_of_an_earlier_version_is_read() -> None:
    branch = Branch(token_ids([1, 2]), "", "salt", 1.0, TurnSplit(1))
    told = Head("t", "s", "e", 1, 0, 1.0, (branch,), None, "not_text", session_created_unix_us=9)
    written = sealed.read_unsealed(pack_head(told, KEYS))
    values: dict[str, Any] = dict(written.values)
    del values["last_turn"], values["unkept"], values["session_created_unix_us"]
    del values["branches"][0]["adapter_name"], values["branches"][0]["began_unix_s"]
    old = sealed.pack(sealed.Sealed(sealed.Kind.HEAD, values, written.sections), KEYS)
    read = unpack_head(old, KEYS)
    assert read == replace(told, last_turn=None, unkept="", session_created_unix_us=0)


def test_a_turn_of_an_earlier_version_has_no_id_and_no_timing() -> None:
    turn = LastTurn(1.0, TurnSplit(1), turn_id="op-1", timing=TurnTiming(ready_s=1.0))
    written = sealed.read_unsealed(pack_head(Head("t", "s", "e", 1, 0, 1.0, (), turn), KEYS))
    values: dict[str, Any] = dict(written.values)
    del values["last_turn"]["turn_id"], values["last_turn"]["timing"]
    old = sealed.pack(sealed.Sealed(sealed.Kind.HEAD, values, written.sections), KEYS)
    assert unpack_head(old, KEYS).last_turn == replace(turn, turn_id="", timing=None)


SESSIONS = st.builds(
    SessionRecord,
    tenant=NAMES.map(TenantId),
    session=NAMES.map(SessionId),
    created_unix_s=TIMES,
    updated_unix_s=TIMES,
    model=NAMES,
    idle_timeout_s=st.none() | TIMES,
    ttl_s=st.none() | TIMES,
    pinned=st.booleans(),
    policy=st.dictionaries(NAMES, st.none() | st.booleans() | st.integers() | NAMES),
    deleted_unix_s=st.none() | TIMES,
    forked_from=ORIGINS,
)


@given(SESSIONS)
def test_session_files_round_trip(record: SessionRecord) -> None:
    assert unpack_session(pack_session(record, KEYS), KEYS) == record


@given(
    st.builds(
        EngineInfo,
        engine_id=NAMES.map(EngineId),
        url=NAMES,
        model=NAMES,
        pid=COUNTS,
        started_unix_s=TIMES,
        heartbeat_unix_s=TIMES,
        fingerprint=st.just(a_fingerprint()),
        chunk_tokens=COUNTS,
        chunk_bytes=COUNTS,
        ram_tier_chunks=COUNTS,
        max_model_tokens=COUNTS,
        vllm_version=NAMES,
        shared_files=st.lists(st.builds(SharedFile, NAMES, COUNTS), max_size=2).map(tuple),
        tier_off=NAMES,
        attestable=st.booleans(),
        resets=COUNTS,
        adapters=st.lists(st.builds(ServedAdapter, NAMES, NAMES, NAMES), max_size=2).map(tuple),
        launch=NAMES,
    )
)
def test_engine_files_round_trip(info: EngineInfo) -> None:
    assert unpack_engine(pack_engine(info, KEYS), KEYS) == info


def test_files_from_before_there_were_forks_and_launches_are_read() -> None:
    record = SessionRecord(TenantId("t"), SessionId("s"), 5.0, 5.0)
    old = dict(sealed.unpack_json(pack_session(record, KEYS), "session", KEYS))
    del old["forked_from"]
    assert unpack_session(sealed.pack_json("session", old, KEYS), KEYS) == record
    info = EngineInfo(EngineId("e"), "", "m", 1, 1.0, 1.0, a_fingerprint(), 1, 1, 1, 1, "0.32.0")
    old = dict(sealed.unpack_json(pack_engine(info, KEYS), "engine", KEYS))
    del old["launch"]
    assert unpack_engine(sealed.pack_json("engine", old, KEYS), KEYS) == info


def test_a_tombstone_keeps_nothing_but_the_name_and_the_time() -> None:
    mark = tombstone(TenantId("t"), SessionId("s"), 5.0)
    assert mark.is_tombstone
    assert mark == SessionRecord(TenantId("t"), SessionId("s"), 5.0, 5.0, deleted_unix_s=5.0)


def a_chunk(start: int = 0, end: int = 16, group: int = 0) -> ChunkRecord:
    return ChunkRecord(group, start, end, SEGMENTS[0], 4096, 10, 10, 0, bytes(16))


@pytest.mark.parametrize(
    "chunks",
    [
        [a_chunk(16, 32)],  # does not begin at token 0
        [a_chunk(), a_chunk(32, 48)],  # hole
        [a_chunk(), a_chunk(8, 32)],  # overlap
        [a_chunk(), a_chunk()],  # twice
        [a_chunk(), a_chunk(16, 32), a_chunk(group=1), a_chunk(32, 48, group=1)],
        [a_chunk(0, 0)],
        [a_chunk(0, 64)],  # more tokens than there are
        [replace(a_chunk(), offset_bytes=0)],
        [replace(a_chunk(), offset_bytes=4097)],
        [replace(a_chunk(), stored_bytes=0)],
        [replace(a_chunk(), stored_bytes=11)],
        [replace(a_chunk(), raw_bytes=1 << 40, stored_bytes=1 << 40)],
        [replace(a_chunk(), segment_id=SegmentId("../../etc/passwd"))],
        [replace(a_chunk(), group=2**32 - 1)],
    ],
)
def test_impossible_chunks_are_neither_written_nor_believed(chunks: list[ChunkRecord]) -> None:
    manifest = manifest_of_plan(SnapshotPlan(chunks=3), chunks)
    assert fault_of(manifest)
    with pytest.raises(ValueError, match="must not be written"):
        pack_manifest(manifest, KEYS)


WINDOWED = Fingerprint({"kv_groups": [{"window_tokens": 0}, {"window_tokens": 32}]})


@pytest.mark.parametrize(
    ("chunks", "fault"),
    [
        ([a_chunk(16, 32, group=1)], ""),  # of a window, what lies before is not kept
        ([a_chunk(0, 16, group=1), a_chunk(32, 48, group=1)], ""),
        ([a_chunk(16, 32, group=0)], "group 0 has a gap"),
        ([a_chunk(16, 32, group=1)] * 2, "a windowed group's chunk is misplaced"),
        ([a_chunk(8, 24, group=1)], "a windowed group's chunk is misplaced"),
        ([a_chunk(16, 48, group=1)], "a windowed group's chunk is misplaced"),
    ],
)
def test_chunks_of_a_windowed_group_have_their_places(
    chunks: list[ChunkRecord], fault: str
) -> None:
    plan = SnapshotPlan(chunks=3, fingerprint=WINDOWED)
    assert fault_of(manifest_of_plan(plan, chunks)) == fault


@pytest.mark.parametrize(
    "change", [{"generation": 0}, {"parent_generation": 1}, {"chunk_tokens": 0}]
)
def test_impossible_numbers_are_not_written(change: dict[str, int]) -> None:
    manifest = replace(manifest_of_plan(SnapshotPlan(), []), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be written"):
        pack_manifest(manifest, KEYS)


def resealed(packed: bytes, values: dict[str, object], sections: dict[bytes, bytes]) -> bytes:
    """Change a sealed file as another version with the right key might have written it."""
    contents = sealed.read_unsealed(packed)
    changed = sealed.Sealed(
        contents.kind,
        {**contents.values, **values},  # type: ignore[dict-item]
        {**contents.sections, **sections},
    )
    return sealed.pack(changed, KEYS)


@pytest.mark.parametrize(
    ("values", "sections"),
    [
        ({"tenant": 5}, {}),
        ({"generation": -1}, {}),
        ({"generation": True}, {}),
        ({"generation": 2**70}, {}),
        ({"created_unix_s": "now"}, {}),
        ({"created_unix_s": 10**400}, {}),
        ({"fingerprint": []}, {}),
        ({"segments": [1]}, {}),
        ({"segments": []}, {}),
        ({"segments": "x"}, {}),
        ({"wrapped_keys": [{"segment": "a", "key": "no hex"}]}, {}),
        ({"wrapped_keys": ["x"]}, {}),
        ({}, {b"TOKS": b"123"}),
        ({}, {b"TOKS": b""}),
        ({}, {b"CHNK": b"1"}),
        ({}, {b"CHNK": b"\xff" * 64}),
    ],
)
def test_sealed_nonsense_in_a_manifest_is_refused(
    values: dict[str, object], sections: dict[bytes, bytes]
) -> None:
    packed = pack_manifest(manifest_of_plan(SnapshotPlan(), [a_chunk()]), KEYS)
    with pytest.raises(StoreCorruptError):
        unpack_manifest(resealed(packed, values, sections), KEYS)


TURN = LastTurn(1.0, TurnSplit(1)).as_json()


@pytest.mark.parametrize(
    "values",
    [
        {"branches": [{}]},
        {"branches": {}},
        {"branches": [1]},
        {"sequence": 1.5},
        {"turns_in_flight": None},
        {"unkept": None},
        {"last_turn": []},
        {"last_turn": {}},
        {"last_turn": {**TURN, "diverged_at_token": 0.5}},
        {"last_turn": {**TURN, "diverged_at_token": "7"}},
        {"last_turn": {**TURN, "causes": [1]}},
        {"last_turn": {**TURN, "split": {}}},
        {"last_turn": {**TURN, "timing": []}},
        {"last_turn": {**TURN, "timing": {}}},
        {"last_turn": {**TURN, "timing": {**TurnTiming().as_json(), "load_s": -1}}},
    ],
)
def test_sealed_nonsense_in_a_head_is_refused(values: dict[str, object]) -> None:
    packed = pack_head(Head("t", "s", "e", 1, 0, 1.0, ()), KEYS)
    with pytest.raises(StoreCorruptError):
        unpack_head(resealed(packed, values, {}), KEYS)


def test_a_head_whose_tokens_are_missing_is_refused() -> None:
    head = Head("t", "s", "e", 1, 0, 1.0, (Branch(token_ids([1]), "", "", 1.0, TurnSplit()),))
    with pytest.raises(StoreCorruptError):
        unpack_head(resealed(pack_head(head, KEYS), {}, {b"TOKS": b""}), KEYS)
