"""What a lossy snapshot tells of its losses: measured, kept, and not believed if impossible."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError, StoreVersionError
from sessiond.domain.ids import SegmentId
from sessiond.domain.loss import Loss
from sessiond.domain.snapshot import ChunkRecord
from sessiond.store import sealed
from sessiond.store.codecs import LOSSY, Codec
from sessiond.store.fp8 import BFLOAT16
from sessiond.store.lossmeter import LossMeter
from sessiond.store.manifests import fault_of, pack_manifest, unpack_manifest
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    SnapshotPlan,
    a_fingerprint,
    a_key_ring,
    a_plan,
    as_stored,
    load_snapshot,
    manifest_of_plan,
    write_snapshot,
)

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.store import Store

KEYS = a_key_ring()
SEGMENT = SegmentId("0" * 32)
PLAN = a_plan(Codec.FP8_BFLOAT16)
SIZES = st.floats(0, 1e300)
LOSSES = st.builds(Loss, SIZES, SIZES, SIZES, SIZES)


def records(losses: list[tuple[Loss, ...]]) -> list[ChunkRecord]:
    """Return chunks that lost so much."""
    step, codec = CHUNK_TOKENS, int(Codec.FP8_BFLOAT16)
    return [
        ChunkRecord(
            0, at * step, (at + 1) * step, SEGMENT, (at + 1) * 4096, 10, 20, codec, bytes(16), loss
        )
        for at, loss in enumerate(losses)
    ]


def a_manifest(losses: list[tuple[Loss, ...]]) -> Manifest:
    return manifest_of_plan(replace(PLAN, chunks=len(losses)), records(losses))


@given(st.integers(1, 2).flatmap(lambda n: st.lists(st.tuples(*[LOSSES] * n), min_size=1)))
def test_losses_round_trip(losses: list[tuple[Loss, ...]]) -> None:
    manifest = a_manifest(losses)
    read = unpack_manifest(pack_manifest(manifest, KEYS), KEYS)
    nothing = [() if all(part == Loss() for part in parts) else parts for parts in losses]
    assert [chunk.loss for chunk in read.chunks] == nothing
    assert (read, read.loss) == (manifest, manifest.loss)
    assert read.loss is read.loss  # added up once: a long session has thousands of chunks


@pytest.mark.parametrize("fine_first", [True, False])
def test_chunks_that_were_measured_in_other_parts_are_read_back(fine_first: bool) -> None:  # noqa: FBT001 - a parameter
    k, v, kv = Loss(1.0, 2.0, 3.0, 4.0), Loss(5.0, 6.0, 2.0, 8.0), Loss(9.0, 9.0, 9.0, 9.0)
    losses: list[tuple[Loss, ...]] = [(k, v), (), (kv,)]
    manifest = a_manifest(losses if fine_first else losses[::-1])
    read = unpack_manifest(pack_manifest(manifest, KEYS), KEYS)
    assert {chunk.loss for chunk in read.chunks} == {(k + v,), (), (kv,)}
    assert read.loss == manifest.loss


def resealed(manifest: Manifest, section: bytes | None) -> bytes:
    written = sealed.read_unsealed(pack_manifest(manifest, KEYS))
    sections = {tag: data for tag, data in written.sections.items() if tag != b"LOSS"}
    if section is not None:
        sections[b"LOSS"] = section
    return sealed.pack(sealed.Sealed(written.kind, written.values, sections), KEYS)


def section(parts: int, *numbers: float) -> bytes:
    return struct.pack("<I4x", parts) + struct.pack(f"<{len(numbers)}d", *numbers)


def test_the_bytes_of_the_section_never_change() -> None:
    k, v = Loss(1.0, 2.0, 3.0, 4.0), Loss(5.0, 6.0, 7.0, 8.0)
    written = sealed.read_unsealed(pack_manifest(a_manifest([(k, v), ()]), KEYS)).sections
    assert written[b"LOSS"] == section(2, *map(float, range(1, 9)), *[0.0] * 8)
    assert written[b"LOSS"][:24].hex() == "0200000000000000000000000000f03f0000000000000040"


@pytest.mark.parametrize(
    "told",
    [
        None,
        b"",
        section(1)[:7],
        section(0),
        section(1),
        section(2, *[0.0] * 4),
        section(3, *[0.0] * 12),
        section(1, *[0.0] * 5),
        section(1, -1.0, 1.0, 1.0, 1.0),
        section(1, 1.0, float("nan"), 1.0, 1.0),
        section(1, 1.0, 1.0, float("inf"), 1.0),
        b"\xff" * 40,
    ],
)
def test_sealed_nonsense_about_losses_is_refused(told: bytes | None) -> None:
    manifest = a_manifest([(Loss(1.0, 2.0, 3.0, 4.0),)])
    with pytest.raises(StoreCorruptError):
        unpack_manifest(resealed(manifest, told), KEYS)


def test_only_a_lossy_manifest_tells_of_losses() -> None:
    plain = manifest_of_plan(SnapshotPlan(chunks=1), [replace(records([()])[0], codec=0)])
    assert plain.loss is None
    assert b"LOSS" not in sealed.read_unsealed(pack_manifest(plain, KEYS)).sections
    with pytest.raises(StoreCorruptError, match="not lossy"):
        unpack_manifest(resealed(plain, section(1, *[0.0] * 4)), KEYS)


@pytest.mark.parametrize("codec", sorted(LOSSY))
def test_lossy_chunks_are_in_lossy_manifests_only(codec: int) -> None:
    chunks = [replace(records([()])[0], codec=codec)]
    silent = manifest_of_plan(SnapshotPlan(chunks=1), chunks)
    assert fault_of(silent) == "it has lossy chunks without saying so"
    strange = replace(silent, fingerprint=a_fingerprint(lossy="fp2"))
    assert fault_of(strange) == "it is lossy in an unknown way"
    assert fault_of(replace(silent, fingerprint=a_fingerprint(lossy="fp8"))) == ""


def test_a_way_of_later_versions_is_no_damage() -> None:
    written = sealed.read_unsealed(pack_manifest(a_manifest([()]), KEYS))
    fields: dict[str, JsonValue] = {**PLAN.fingerprint.fields, "lossy": "fp2"}
    values: dict[str, JsonValue] = {**written.values, "fingerprint": fields}
    later = sealed.pack(sealed.Sealed(written.kind, values, written.sections), KEYS)
    with pytest.raises(StoreVersionError, match="fp2"):
        unpack_manifest(later, KEYS)


def errors_of(raw: bytes) -> tuple[float, float]:
    """Return the relative RMS and the largest error of storing bytes, by another way."""
    before = BFLOAT16.floats(np.frombuffer(raw, np.uint8)).astype(np.float64)
    stored = as_stored(Codec.FP8_BFLOAT16, raw)
    after = BFLOAT16.floats(np.frombuffer(stored, np.uint8)).astype(np.float64)
    difference = np.abs(before - after)
    rms = float(np.linalg.norm(difference) / np.linalg.norm(before))
    return rms, float(difference.max() / np.abs(before).max())


def test_a_snapshot_tells_what_was_lost_of_what_is_loaded(store: Store) -> None:
    manifest = write_snapshot(store, PLAN)
    raw = [PLAN.raw(position) for position in PLAN.positions()]
    assert load_snapshot(store, manifest) != raw
    read = store.read_manifest(PLAN.tenant, PLAN.session, 1)
    for known in (manifest, read):
        assert known.loss is not None
        (error,) = known.loss.errors.values()
        assert list(known.loss.errors) == ["kv"]
        assert (error.rms, error.largest) == pytest.approx(errors_of(b"".join(raw)))
    assert store.verify().is_clean


@pytest.mark.parametrize("half_bytes", [2, 30, 1000, 5003 * 2, 1 << 20])
def test_k_and_v_are_told_apart_where_their_runs_are_known(half_bytes: int) -> None:
    raw = PLAN.raw(PLAN.positions()[0])
    stored = np.frombuffer(as_stored(Codec.FP8_BFLOAT16, raw), np.uint8)
    meter = LossMeter(BFLOAT16, np.frombuffer(raw, np.uint8), half_bytes)
    pieces = [stored[start : start + 3000] for start in range(0, len(stored), 3000)]
    assert b"".join(piece.tobytes() for piece in meter.watch(pieces)) == stored.tobytes()
    before = BFLOAT16.floats(np.frombuffer(raw, np.uint8)).astype(np.float64)
    errors = before - BFLOAT16.floats(stored)
    is_v = np.arange(len(before)) // (half_bytes // 2) % 2 == 1
    for part, mine in zip(meter.loss, (~is_v, is_v), strict=True):
        assert part.error_squares == pytest.approx(np.square(errors[mine]).sum())
        assert part.squares == pytest.approx(np.square(before[mine]).sum())
        assert part.largest == np.abs(before[mine]).max(initial=0)
        assert part.largest_error == np.abs(errors[mine]).max(initial=0)


def test_what_is_stored_again_loses_nothing_more_and_stays_marked(store: Store) -> None:
    manifest = write_snapshot(store, PLAN)
    loaded = load_snapshot(store, manifest)
    with store.new_segment(PLAN.tenant, PLAN.bytes_digest) as writer:
        again = [
            writer.append(position, memoryview(bytes(raw)), PLAN.codec)  # type: ignore[arg-type]
            for position, raw in zip(PLAN.positions(), loaded, strict=True)
        ]
        writer.finish()
        store.commit_manifest(manifest_of_plan(replace(PLAN, generation=2), again))
    second = store.read_manifest(PLAN.tenant, PLAN.session, 2)
    assert load_snapshot(store, second) == loaded
    assert second.loss is not None
    assert (second.loss.way, second.loss.errors) == ("fp8", {})


def test_a_chunk_that_cannot_be_stored_with_loss_is_told_to_have_lost_nothing(
    store: Store,
) -> None:
    raw = bytearray(PLAN.raw(PLAN.positions()[0]))
    raw[4:6] = b"\xc0\x7f"  # no number
    with store.new_segment(PLAN.tenant, PLAN.bytes_digest) as writer:
        record = writer.append(PLAN.positions()[0], memoryview(raw), PLAN.codec)
    assert record.codec not in LOSSY
    assert record.loss == ()
