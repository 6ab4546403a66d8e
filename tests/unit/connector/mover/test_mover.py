from __future__ import annotations

import errno
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.mover.loads import open_load
from sessiond.connector.mover.meter import MeteredOps
from sessiond.domain.errors import StoreError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.heads import LastTurn, TurnSplit
from sessiond.domain.ids import SessionId
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import to_bytes, token_ids
from sessiond.store.codecs import Codec
from sessiond.store.store import Store
from sessiond.testing.files import FaultyOps, SteppedOps, flip_byte
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    TENANT,
    a_fingerprint,
    a_key_ring,
    bf16_bytes,
    some_tokens,
)

HEAD = some_tokens(3 * CHUNK_TOKENS + 5)
LONGER_HEAD = some_tokens(5 * CHUNK_TOKENS + 2)
OTHER_SLOTS = [(0, 12), (1, 10), (2, 11)]


def reasons(causes: list[dict[str, Any]]) -> list[str]:
    return [str(cause["reason"]) for cause in causes]


def flip_chunk(rig: MoverRig, session: str, chunk: int) -> None:
    """Damage one chunk of a session's first snapshot on disk."""
    record = rig.store.read_manifest(TENANT, SessionId(session), 1).chunks[chunk]
    (path,) = (rig.store.root / "segments").rglob(f"{record.segment_id}.seg")
    flip_byte(path, record.offset_bytes + record.stored_bytes // 2)


def leave_no_room(local: MoverRig) -> FaultyOps:
    """Give the mover a disk on which calls can fail."""
    ops = FaultyOps()
    local.local._store = Store.open(local.store.root, a_key_ring(), ops=ops)
    return ops


# There and back, in this process and through a real one


def test_kv_comes_back_into_other_slots(rig: MoverRig, session: str) -> None:
    assert rig.suspend(session, HEAD).snapshot is not None
    opened = rig.open_load(session, HEAD)
    assert (opened.chunks, opened.causes) == ([0, 1, 2], [])
    done = rig.load(opened.plan_id, OTHER_SLOTS)
    assert (done.failed, done.causes) == ([], [])
    assert [rig.slot(slot) for _, slot in OTHER_SLOTS] == [bf16_bytes(seed) for seed in range(3)]


def test_the_answer_to_a_load_tells_what_its_stages_took(rig: MoverRig, session: str) -> None:
    snapshot = rig.suspend(session, HEAD).snapshot
    assert snapshot is not None
    done = rig.load(rig.open_load(session, HEAD).plan_id, OTHER_SLOTS)
    assert done.read_bytes == snapshot["stored_bytes"]
    assert min(done.read_s, done.decode_s) > 0
    threads = rig.hello.read_threads
    assert done.read_s + done.decode_s < threads * done.seconds + 0.001  # two clocks


def test_the_answer_to_a_suspend_describes_the_snapshot(rig: MoverRig, session: str) -> None:
    told = rig.suspend(session, HEAD).snapshot
    assert told is not None
    manifest = rig.store.read_manifest(TENANT, SessionId(session), 1)
    assert (told["generation"], told["chunks"], told["tokens_total"]) == (1, 3, len(HEAD))
    assert told["tokens_restorable"] == manifest.restorable_tokens == 3 * CHUNK_TOKENS
    assert told["stored_bytes"] == told["new_bytes"] == manifest.stored_bytes
    assert told["raw_bytes"] == 3 * rig.hello.chunk_bytes


def test_what_another_adapter_has_stored_since_keeps_nothing_from_being_shared(
    rig: MoverRig, session: str
) -> None:
    first = rig.suspend(session, HEAD).snapshot
    rig.suspend(session, HEAD, generation=2, adapter_digest="d1")
    third = rig.suspend(session, LONGER_HEAD, generation=3).snapshot
    assert first is not None
    assert third is not None
    assert (third["chunks"], third["parent_generation"]) == (5, 1)
    assert third["shared_bytes"] == first["stored_bytes"]


def test_what_an_older_snapshot_has_all_of_is_the_newest_again(rig: MoverRig, session: str) -> None:
    """Where another adapter's came between, that is what would be found first."""
    first = rig.suspend(session, HEAD).snapshot
    rig.suspend(session, HEAD, generation=2, adapter_digest="d1")
    third = rig.suspend(session, HEAD, generation=3).snapshot
    assert first is not None
    assert third is not None
    assert (third["generation"], third["chunks"], third["new_bytes"]) == (3, 3, 0)
    assert third["shared_bytes"] == first["stored_bytes"]
    assert rig.suspend(session, HEAD, generation=4).snapshot is None  # nothing is new


def test_a_second_generation_writes_only_what_is_new(rig: MoverRig, session: str) -> None:
    first = rig.suspend(session, HEAD).snapshot
    second = rig.suspend(session, LONGER_HEAD, generation=2).snapshot
    assert first is not None
    assert second is not None
    assert (second["chunks"], second["parent_generation"]) == (5, 1)
    assert second["shared_bytes"] == first["stored_bytes"]
    opened = rig.open_load(session, LONGER_HEAD, generation=2)
    assert rig.load(opened.plan_id, [(chunk, 20 - chunk) for chunk in range(5)]).failed == []
    assert [rig.slot(20 - chunk) for chunk in range(5)] == [bf16_bytes(seed) for seed in range(5)]


def test_a_flipped_byte_fails_its_chunk_and_nothing_stays(rig: MoverRig, session: str) -> None:
    rig.suspend(session, HEAD)
    flip_chunk(rig, session, 1)
    before = rig.fill(10, seed=99)
    opened = rig.open_load(session, HEAD)
    done = rig.load(opened.plan_id, OTHER_SLOTS)
    assert (done.failed, reasons(done.causes)) == ([1], ["snapshot_corrupt"])
    assert rig.slot(10) in (before, bytes(len(before)))
    assert [rig.slot(slot) for slot in (12, 11)] == [bf16_bytes(0), bf16_bytes(2)]


def test_a_chunk_known_to_be_bad_is_not_offered_again(rig: MoverRig, session: str) -> None:
    rig.suspend(session, HEAD)
    flip_chunk(rig, session, 1)
    rig.load(rig.open_load(session, HEAD).plan_id, OTHER_SLOTS)
    opened = rig.open_load(session, HEAD)
    assert (opened.chunks, reasons(opened.causes)) == ([0, 2], ["snapshot_corrupt"])


def test_a_discarded_suspend_leaves_nothing(rig: MoverRig, session: str) -> None:
    segments = sorted((rig.store.root / "segments").rglob("*.seg"))
    opened = rig.open_suspend(session, HEAD)
    rig.store_chunks(opened.plan_id, [(0, 0)])
    assert rig.finish_suspend(opened.plan_id, commit=False).snapshot is None
    assert rig.store.generations(TENANT, SessionId(session)) == []
    assert sorted((rig.store.root / "segments").rglob("*.seg")) == segments
    assert list((rig.store.root / "tmp").iterdir()) == []


def test_a_head_is_written(rig: MoverRig, session: str) -> None:
    described = {
        "tokens": len(HEAD),
        "adapter_digest": "ad",
        "adapter_name": "poet",
        "began_unix_s": 1.0,
        "cache_salt_hash": "5a",
        "updated_unix_s": 4.0,
        "split": {"prompt_tokens": 1, "vram_tokens": 2, "ram_tokens": 3, "disk_tokens": 4},
    }
    other = {**described, "tokens": len(LONGER_HEAD)}
    payload = to_bytes(HEAD) + to_bytes(LONGER_HEAD)
    turn = LastTurn(
        5.0, TurnSplit(9, 8), 20, 16, 7, (Cause(Reason.DIVERGED, "at token 7"),), "op-1"
    )
    told: dict[str, Any] = {"last_turn": turn.as_json(), "unkept": "not_text"}
    rig.send(protocol.WriteHead(TENANT, session, 9, 1, 5.0, [described, other], payload, **told))
    head = wait_for_head(rig, session)
    assert (head.last_turn, head.unkept) == (turn, "not_text")
    assert (head.engine_id, head.sequence, head.turns_in_flight) == (rig.hello.engine_id, 9, 1)
    assert [branch.tokens for branch in head.branches] == [HEAD, LONGER_HEAD]
    assert head.branches[0].split.disk_tokens == 4
    assert (head.branches[0].adapter_digest, head.branches[0].adapter_name) == ("ad", "poet")


def wait_for_head(rig: MoverRig, session: str) -> Any:  # noqa: ANN401 - a Head
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for head in rig.store.read_heads(TENANT, SessionId(session)):
            return head
        time.sleep(0.005)
    raise AssertionError("no head was written")


# What may be used


@pytest.mark.parametrize("chunks", range(4))
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_prompt_that_diverges_uses_the_whole_chunks_before(
    local: MoverRig, chunks: int, more: int
) -> None:
    local.suspend("s", HEAD)
    at = chunks * CHUNK_TOKENS + more
    opened = local.open_load("s", token_ids([*HEAD[:at], HEAD[at] + 1, *HEAD[at + 1 :]]))
    assert (opened.chunks, opened.causes) == (list(range(chunks)), [])
    assert opened.common_tokens == at
    assert (opened.tokens_total, opened.tokens_restorable) == (len(HEAD), 3 * CHUNK_TOKENS)


def test_a_longer_prompt_is_no_divergence(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    opened = local.open_load("s", LONGER_HEAD)
    assert (opened.chunks, opened.causes) == ([0, 1, 2], [])


def test_a_shorter_prompt_uses_its_whole_chunks(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    opened = local.open_load("s", HEAD[: 2 * CHUNK_TOKENS + 1])
    assert (opened.chunks, opened.causes) == ([0, 1], [])


@pytest.mark.parametrize("alike_tokens", [CHUNK_TOKENS + 1, 2 * CHUNK_TOKENS])
def test_of_two_sessions_that_are_nearly_the_same_each_has_its_own(
    local: MoverRig, alike_tokens: int
) -> None:
    other = HEAD[:alike_tokens] + token_ids([7]) + HEAD[alike_tokens + 1 :]
    local.suspend("one", HEAD)
    local.suspend("two", other)
    whole = alike_tokens // CHUNK_TOKENS
    for session, own, foreign in [("one", HEAD, other), ("two", other, HEAD)]:
        assert local.open_load(session, own).chunks == [0, 1, 2]
        opened = local.open_load(session, foreign)
        assert (opened.chunks, opened.common_tokens) == (list(range(whole)), alike_tokens)


def test_without_a_snapshot_there_is_nothing(local: MoverRig) -> None:
    opened = local.open_load("s", HEAD)
    assert (opened.chunks, reasons(opened.causes)) == ([], ["snapshot_missing"])


def test_another_adapter_may_not_use_it(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    opened = local.open_load("s", HEAD, adapter_digest="poet")
    assert (opened.chunks, reasons(opened.causes)) == ([], ["adapter_mismatch"])


def test_other_weights_may_not_use_it(local: MoverRig, tmp_path: Path) -> None:
    local.suspend("s", HEAD)
    other = MoverRig(tmp_path, make_hello(tmp_path, a_fingerprint("w2")), in_process=True)
    opened = other.open_load("s", HEAD)
    assert (opened.chunks, reasons(opened.causes)) == ([], ["weights_mismatch"])
    other.close()


def test_another_vllm_patch_version_may_use_it(local: MoverRig, tmp_path: Path) -> None:
    local.suspend("s", HEAD)
    patched = Fingerprint({**a_fingerprint().fields, "vllm_version": "0.32.1"})
    other = MoverRig(tmp_path, make_hello(tmp_path, patched), in_process=True)
    assert other.open_load("s", HEAD).chunks == [0, 1, 2]
    other.close()


def test_a_segment_that_is_gone_is_told(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    for path in (local.store.root / "segments").rglob("*.seg"):
        path.unlink()
    opened = local.open_load("s", HEAD)
    assert (opened.chunks, reasons(opened.causes)) == ([], ["snapshot_missing"])


def test_a_damaged_manifest_is_told(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    flip_byte(next(local.store.root.rglob("1.manifest")), 50)
    assert reasons(local.open_load("s", HEAD).causes) == ["snapshot_corrupt"]


def test_an_open_plan_keeps_its_segments(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    opened = local.open_load("s", HEAD)
    local.store.delete_session(TENANT, SessionId("s"))
    local.store.collect()
    assert local.load(opened.plan_id, OTHER_SLOTS).failed == []


def test_a_closed_plan_lets_its_segments_go(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    local.send(protocol.ClosePlan(local.open_load("s", HEAD).plan_id))
    local.store.delete_session(TENANT, SessionId("s"))
    deadline_s = time.monotonic() + 10
    while list((local.store.root / "segments").rglob("*.seg")):
        assert time.monotonic() < deadline_s
        local.store.collect()


def test_a_plan_closed_while_a_load_runs_is_released_by_the_load(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    asked = protocol.OpenLoad(1, TENANT, "s", 1, "", to_bytes(HEAD))
    plan, _ = open_load(local.store, a_fingerprint(), asked)
    plan.hold()
    plan.let_go()  # closed
    out = bytearray(local.hello.chunk_bytes)

    def load() -> dict[int, Exception | None]:
        filling = plan.begin([[0, 0]], lambda _: memoryview(out), local.local._bytes_digest)
        filling.work()
        return filling.results()

    assert load() == {0: None}
    plan.let_go()  # the load has ended
    (error,) = load().values()
    assert isinstance(error, StoreError)


def test_unreadable_notes_do_not_hinder_a_load(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    leave_no_room(local).fail("open", errno.EACCES, name_part=".bad", times=99)
    assert local.open_load("s", HEAD).chunks == [0, 1, 2]


def test_a_disk_that_cannot_be_read_fails_the_chunks(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    ops = leave_no_room(local)
    opened = local.open_load("s", HEAD)
    ops.fail("pread", errno.EIO, times=99)
    done = local.load(opened.plan_id, OTHER_SLOTS)
    assert (done.failed, reasons(done.causes)) == ([0, 1, 2], ["store_failed"])


# What is written


def test_only_what_lies_before_a_gap_is_committed(local: MoverRig) -> None:
    opened = local.open_suspend("s", HEAD)
    local.store_chunks(opened.plan_id, [(0, 0), (2, 2)])
    told = local.finish_suspend(opened.plan_id).snapshot
    assert told is not None
    assert told["chunks"] == 1


def test_chunks_may_come_in_any_order_and_several_jobs(local: MoverRig) -> None:
    opened = local.open_suspend("s", HEAD)
    for chunk in (2, 0, 1):
        local.store_chunks(opened.plan_id, [(chunk, chunk)])
    told = local.finish_suspend(opened.plan_id).snapshot
    assert told is not None
    assert told["chunks"] == 3


def test_a_chunk_that_comes_twice_is_written_once(local: MoverRig) -> None:
    opened = local.open_suspend("s", HEAD)
    local.fill(0, seed=1)
    local.store_chunks(opened.plan_id, [(0, 0)])
    local.fill(0, seed=2)
    local.store_chunks(opened.plan_id, [(0, 0)])
    local.finish_suspend(opened.plan_id)
    local.load(local.open_load("s", HEAD).plan_id, [(0, 5)])
    assert local.slot(5) == bf16_bytes(1)


def test_nothing_new_is_no_snapshot(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    finished = local.suspend("s", HEAD, generation=2)
    assert (finished.snapshot, finished.causes) == (None, [])
    assert local.store.generations(TENANT, SessionId("s")) == [1]


def test_a_generation_is_written_once(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    finished = local.suspend("s", some_tokens(40, seed=5))
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["generation_exists"])


def test_a_deleted_session_is_not_revived(local: MoverRig) -> None:
    opened = local.open_suspend("s", HEAD)
    local.store_chunks(opened.plan_id, [(0, 0)])
    local.store.delete_session(TENANT, SessionId("s"))
    finished = local.finish_suspend(opened.plan_id)
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["session_deleted"])


def test_a_head_of_a_deleted_session_is_dropped(local: MoverRig) -> None:
    local.store.delete_session(TENANT, SessionId("s"))
    local.send(protocol.WriteHead(TENANT, "s", 1, 0, 5.0, [], head_id=7))
    # Nobody may ask for it, so it is no failure: that would be told whoever asks for all heads.
    assert local.wait_for(protocol.HeadWritten) == protocol.HeadWritten(7)
    assert local.store.read_heads(TENANT, SessionId("s")) == []


def test_a_head_for_which_there_is_no_room_is_told(local: MoverRig) -> None:
    leave_no_room(local).fail("rename", errno.ENOSPC, times=99)
    local.send(protocol.WriteHead(TENANT, "s", 1, 0, 5.0, [], head_id=7))
    assert reasons(local.wait_for(protocol.HeadWritten).causes) == ["store_full"]


def test_chunks_of_another_adapter_are_not_shared(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    assert local.open_suspend("s", HEAD, 2, adapter_digest="poet").durable_chunks == []


def test_chunks_of_other_weights_are_not_shared(local: MoverRig, tmp_path: Path) -> None:
    local.suspend("s", HEAD)
    other = MoverRig(tmp_path, make_hello(tmp_path, a_fingerprint("w2")), in_process=True)
    assert other.open_suspend("s", HEAD, 2).durable_chunks == []
    other.close()


def test_chunks_of_another_session_are_not_shared(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    assert local.open_suspend("s-2", HEAD).durable_chunks == []


def test_bad_chunks_are_not_shared(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    flip_chunk(local, "s", 1)
    local.load(local.open_load("s", HEAD).plan_id, OTHER_SLOTS)
    assert local.open_suspend("s", HEAD, 2).durable_chunks == [0, 2]


def test_only_the_common_chunks_are_shared(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    changed = token_ids([*HEAD[: 2 * CHUNK_TOKENS - 1], 1, *HEAD[2 * CHUNK_TOKENS :]])
    assert local.open_suspend("s", changed, 2).durable_chunks == [0]


def test_a_long_suspend_is_split_into_segments(tmp_path: Path) -> None:
    hello = make_hello(tmp_path, segment_limit_bytes=12_000)
    rig = MoverRig(tmp_path, hello, in_process=True)
    rig.suspend("s", LONGER_HEAD)
    assert len(list((rig.store.root / "segments").rglob("*.seg"))) > 1
    opened = rig.open_load("s", LONGER_HEAD)
    assert rig.load(opened.plan_id, [(chunk, 20 - chunk) for chunk in range(5)]).failed == []
    assert [rig.slot(20 - chunk) for chunk in range(5)] == [bf16_bytes(seed) for seed in range(5)]
    rig.close()


def test_several_threads_write_one_segment_in_order(tmp_path: Path) -> None:
    hello = replace(make_hello(tmp_path), write_threads=4)
    rig = MoverRig(tmp_path, hello, in_process=True)
    head = some_tokens(20 * CHUNK_TOKENS)
    rig.suspend("s", head)
    (segments,) = [list((rig.store.root / "segments").rglob("*.seg"))]
    chunks = rig.store.read_manifest(TENANT, SessionId("s"), 1).chunks
    by_place = sorted(range(20), key=lambda index: chunks[index].offset_bytes)
    assert len(segments) == 1
    assert by_place == list(range(20))
    opened = rig.open_load("s", head)
    assert rig.load(opened.plan_id, [(chunk, 19 - chunk) for chunk in range(20)]).failed == []
    assert [rig.slot(19 - chunk) for chunk in range(20)] == [bf16_bytes(n) for n in range(20)]
    rig.close()


def test_writers_pause_while_a_read_waits(local: MoverRig) -> None:
    """And the answers of one suspend keep their order all the same."""
    opened = local.open_suspend("s", HEAD)
    gate = local.local._gate
    gate.enter()
    began_s = time.monotonic()
    local.send(protocol.Store(50, opened.plan_id, [[0, 0], [1, 1]]))
    local.send(protocol.Store(51, opened.plan_id, [[2, 2]]))
    local.send(protocol.FinishSuspend(opened.plan_id, commit=True))
    assert local.wait_for(protocol.StoreDone).job_id == 50
    assert time.monotonic() - began_s > 0.15  # the longest pause: writes do not starve
    gate.leave()
    assert local.wait_for(protocol.StoreDone).job_id == 51
    finished = local.wait_for(protocol.SuspendFinished)
    assert finished.snapshot is not None
    assert finished.snapshot["chunks"] == 3


class SlowDisk(MeteredOps):
    """A disk on which every byte that is saved counts."""

    def read_bytes_s(self, assumed: float) -> float:
        return assumed / 1000

    def write_bytes_s(self, assumed: float) -> float:
        return assumed / 1000


@pytest.mark.parametrize(
    ("item_bytes", "raw", "codec"),
    [
        (2, bf16_bytes(3, CHUNK_BYTES), Codec.PLANAR_ZSTD),
        (2, random.Random(1).randbytes(CHUNK_BYTES), Codec.RAW),
        (1, random.Random(1).randbytes(CHUNK_BYTES), Codec.RAW),
        (1, bytes(CHUNK_BYTES), Codec.ZSTD),
    ],
    ids=["bf16", "16-bit noise", "8-bit noise", "8-bit zeros"],
)
def test_the_codec_is_chosen_for_a_segment_by_its_bytes(
    tmp_path: Path, item_bytes: int, raw: bytes, codec: Codec
) -> None:
    hello = replace(make_hello(tmp_path), codec="auto", item_bytes=item_bytes)
    rig = MoverRig(tmp_path, hello, in_process=True)
    rig.local._ops = SlowDisk()
    opened = rig.open_suspend("s", HEAD)
    for slot in range(3):
        rig.region[slot * CHUNK_BYTES : (slot + 1) * CHUNK_BYTES] = raw
    rig.store_chunks(opened.plan_id, [(chunk, chunk) for chunk in range(3)])
    rig.finish_suspend(opened.plan_id)
    chunks = rig.store.read_manifest(TENANT, SessionId("s"), 1).chunks
    assert {chunk.codec for chunk in chunks} == {codec}
    rig.close()


@pytest.mark.parametrize("pin", [Codec.RAW, Codec.ZSTD])
def test_a_codec_can_be_pinned(tmp_path: Path, pin: Codec) -> None:
    hello = replace(make_hello(tmp_path), codec=pin.name.lower())
    rig = MoverRig(tmp_path, hello, in_process=True)
    rig.suspend("s", HEAD)
    chunks = rig.store.read_manifest(TENANT, SessionId("s"), 1).chunks
    assert {chunk.codec for chunk in chunks} == {pin}
    rig.close()


# The engine is gone


class EngineEnds(SteppedOps):
    """Lets the engine end before a call that concerns a name."""

    def __init__(self, rig: MoverRig, call: str, name_part: str) -> None:
        self._rig, self._moment = rig, (call, name_part)

    def before(self, call: str, name: str) -> None:
        if call == self._moment[0] and self._moment[1] in name:
            self._rig.engine.close()


@pytest.mark.parametrize(
    ("call", "name_part"),
    [("link", ".seg"), ("sync", "")],
    ids=["when the segment is finished", "when bytes are synced"],
)
def test_what_is_committed_while_the_engine_ends_is_discarded(
    local: MoverRig, call: str, name_part: str
) -> None:
    local.local._store = Store.open(
        local.store.root, a_key_ring(), ops=EngineEnds(local, call, name_part)
    )
    finished = local.suspend("s", HEAD)
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["aborted"])
    assert local.store.generations(TENANT, SessionId("s")) == []
    local.store.collect()
    assert list((local.store.root / "segments").rglob("*.seg")) == []


def test_a_snapshot_whose_engine_ends_at_the_very_link_stays(local: MoverRig) -> None:
    local.local._store = Store.open(
        local.store.root, a_key_ring(), ops=EngineEnds(local, "link", "1.manifest")
    )
    assert local.suspend("s", HEAD).snapshot is not None
    assert local.store.generations(TENANT, SessionId("s")) == [1]
    assert local.store.verify().is_clean


def test_a_mover_whose_engine_has_ended_writes_not_even_a_segment(local: MoverRig) -> None:
    opened = local.open_suspend("s", HEAD)
    local.store_chunks(opened.plan_id, [(0, 0)])
    local.engine.close()
    finished = local.finish_suspend(opened.plan_id)
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["aborted"])
    assert list((local.store.root / "segments").rglob("*.seg")) == []
    assert list((local.store.root / "tmp").iterdir()) == []


# The disk is full, or fails


def test_a_full_disk_fails_the_job_and_keeps_what_came_before(local: MoverRig) -> None:
    ops = leave_no_room(local)
    opened = local.open_suspend("s", HEAD)
    local.store_chunks(opened.plan_id, [(0, 0)])
    ops.fail("pwrite", errno.ENOSPC)
    assert reasons(local.store_chunks(opened.plan_id, [(1, 1), (2, 2)]).causes) == ["store_full"]
    finished = local.finish_suspend(opened.plan_id)
    assert finished.snapshot is not None
    assert (finished.snapshot["chunks"], reasons(finished.causes)) == (1, ["store_full"])


def test_a_disk_that_is_full_at_once_commits_nothing(local: MoverRig) -> None:
    leave_no_room(local).fail("pwrite", errno.ENOSPC, times=99)
    opened = local.open_suspend("s", HEAD)
    assert reasons(local.store_chunks(opened.plan_id, [(0, 0)]).causes) == ["store_full"]
    finished = local.finish_suspend(opened.plan_id)
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["store_full"])
    assert list((local.store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("call", ["sync", "link"])
def test_a_commit_that_fails_commits_nothing(local: MoverRig, call: str) -> None:
    ops = leave_no_room(local)
    opened = local.open_suspend("s", HEAD)
    local.store_chunks(opened.plan_id, [(0, 0)])
    ops.fail(call, errno.EIO)
    finished = local.finish_suspend(opened.plan_id)
    assert (finished.snapshot, reasons(finished.causes)) == (None, ["store_failed"])
    assert local.store.generations(TENANT, SessionId("s")) == []


def test_a_suspend_that_cannot_be_opened_is_answered(local: MoverRig) -> None:
    local.suspend("s", HEAD)
    name = local.store.keys.session_name(TENANT, SessionId("s"))
    leave_no_room(local).fail("open", errno.EACCES, name_part=name)
    opened = local.open_suspend("s", HEAD, 2)
    assert (opened.durable_chunks, reasons(opened.causes)) == ([], [Reason.STORE_FAILED])
    assert local.finish_suspend(opened.plan_id, commit=False).snapshot is None


def test_a_mover_does_not_answer_answers(local: MoverRig) -> None:
    with pytest.raises(ValueError, match="load_done"):
        local.local.handle(protocol.LoadDone(1, [], [], 0.1, 1))
