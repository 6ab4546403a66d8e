"""Snapshots of two KV groups, one of full attention and one with a window of two chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector.mover import protocol
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import SessionId
from sessiond.domain.kvgroups import KvGroups
from sessiond.domain.snapshot import Manifest
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, TENANT, some_tokens

GROUPS = KvGroups((0, 2))
FINGERPRINT = Fingerprint(
    {
        "weights_digest": "w1",
        "kv_groups": [{"window_tokens": 0}, {"window_tokens": 2 * CHUNK_TOKENS}],
    }
)
HEAD = some_tokens(4 * CHUNK_TOKENS + 5)
LONGER = some_tokens(7 * CHUNK_TOKENS + 5)


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[MoverRig]:
    rig = MoverRig(tmp_path, make_hello(tmp_path, FINGERPRINT), in_process=True)
    yield rig
    rig.close()


def chunks(full: range, windowed: range) -> list[int]:
    return sorted(
        [*(GROUPS.number(0, at) for at in full), *(GROUPS.number(1, at) for at in windowed)]
    )


def store(rig: MoverRig, plan_id: int, numbers: list[int]) -> None:
    for number in numbers:
        rig.fill(number, seed=number)
    assert rig.store_chunks(plan_id, [(number, number) for number in numbers]).causes == []


def suspend(rig: MoverRig, positions: int, generation: int = 1) -> protocol.SuspendOpened:
    """Hand over what vLLM still has of a context: all of one group, a window of the other."""
    tokens = LONGER[: positions * CHUNK_TOKENS + 1]
    opened = rig.open_suspend("s", tokens, generation)
    offered = chunks(range(positions), range(max(0, positions - 2), positions))
    store(rig, opened.plan_id, [each for each in offered if each not in opened.durable_chunks])
    assert rig.finish_suspend(opened.plan_id).snapshot is not None
    return opened


def newest(rig: MoverRig, generation: int) -> Manifest:
    return rig.store.read_manifest(TENANT, SessionId("s"), generation)


def test_both_groups_come_back(mixed: MoverRig) -> None:
    suspend(mixed, 4)
    assert newest(mixed, 1).restorable_tokens == 4 * CHUNK_TOKENS
    opened = mixed.open_load("s", LONGER)
    assert opened.chunks == chunks(range(4), range(2, 4))
    expected = {number: mixed.slot(number) for number in opened.chunks}
    done = mixed.load(opened.plan_id, [(number, 23 - number) for number in opened.chunks])
    assert done.failed == []
    assert {number: mixed.slot(23 - number) for number in opened.chunks} == expected


def test_a_window_is_kept_for_the_snapshot_before(mixed: MoverRig) -> None:
    suspend(mixed, 2)
    suspend(mixed, 4, generation=2)
    opened = suspend(mixed, 7, generation=3)
    assert opened.durable_chunks == chunks(range(4), range(2, 4))  # and not the first one's
    manifest = newest(mixed, 3)
    assert manifest.restorable_tokens == 7 * CHUNK_TOKENS
    assert manifest.restorable_up_to(7 * CHUNK_TOKENS - 1) == 4 * CHUNK_TOKENS
    assert manifest.restorable_up_to(4 * CHUNK_TOKENS - 1) == 0


def test_a_diverging_prompt_is_offered_no_more_than_it_has_in_common(mixed: MoverRig) -> None:
    suspend(mixed, 4)
    suspend(mixed, 7, generation=2)
    common = 5 * CHUNK_TOKENS + 3
    opened = mixed.open_load("s", LONGER[:common] + some_tokens(100, seed=5), generation=2)
    assert opened.chunks == chunks(range(5), range(2, 4))
    assert GROUPS.reach(opened.chunks, 99) == 4


def test_a_suspend_without_a_window_restores_what_it_did_before(mixed: MoverRig) -> None:
    suspend(mixed, 4)
    opened = mixed.open_suspend("s", LONGER, 2)
    store(mixed, opened.plan_id, chunks(range(4, 7), range(0)))
    assert mixed.finish_suspend(opened.plan_id).snapshot is not None
    assert newest(mixed, 2).restorable_tokens == 4 * CHUNK_TOKENS


def test_chunks_of_two_groups_are_never_taken_for_each_other(mixed: MoverRig) -> None:
    suspend(mixed, 4)
    same = chunks(range(3, 4), range(3, 4))
    first, second = (mixed.slot(number) for number in same)
    assert first != second
    opened = mixed.open_load("s", LONGER)
    mixed.load(opened.plan_id, [(same[1], 20), (same[0], 21)])
    assert (mixed.slot(20), mixed.slot(21)) == (second, first)
