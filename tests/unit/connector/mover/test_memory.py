"""The mover's memory beside the shared region is bounded, however long the session is."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.mover.memory import PlanRoom, Shares, divide
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.tokens import to_bytes
from sessiond.store.codecs import Codec
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    TENANT,
    a_fingerprint,
    as_stored,
    bf16_bytes,
    some_tokens,
)

MIB = 1 << 20
CHUNK_BYTES = 2 * MIB
CHUNKS = 150


def size_of(shares: Shares) -> tuple[int, int, bool, int]:
    pace = shares.pace
    return shares.read_threads, shares.write_threads, pace.ahead, pace.run_bytes


def test_the_default_is_enough_for_all_threads_and_ordinary_chunks() -> None:
    assert size_of(divide(256 * MIB, 3 * MIB, 2, 4)) == (2, 4, True, 4 * MIB)


def test_with_less_memory_there_are_fewer_threads_then_smaller_reads() -> None:
    assert size_of(divide(190 * MIB, 6 * MIB, 4, 4))[:2] < (4, 4)
    assert size_of(divide(256 * MIB, 24 * MIB, 2, 2)) == (1, 1, False, 4 * MIB)


@given(st.integers(1, 200 * MIB), st.integers(0, 1 << 30), st.integers(1, 8), st.integers(1, 8))
def test_whatever_is_asked_for_fits_or_is_refused_with_what_would_do(
    chunk_bytes: int, limit_bytes: int, readers: int, writers: int
) -> None:
    try:
        shares = divide(limit_bytes, chunk_bytes, readers, writers)
    except ConfigurationError as error:
        enough = int(error.message.partition("mover_memory_bytes=")[2].split()[0])
        assert enough > limit_bytes
        assert size_of(divide(enough, chunk_bytes, readers, writers))[:3] == (1, 1, False)
    else:
        assert 1 <= shares.read_threads <= readers
        assert 1 <= shares.write_threads <= writers


def test_open_plans_have_room_only_as_long_as_there_is_some() -> None:
    room = PlanRoom(100)
    assert room.take(1, 300)  # one is always served
    assert not room.take(2, 1)
    room.give_back(1)
    assert room.take(2, 60)
    assert not room.take(3, 60)
    room.give_back(3)  # it has nothing
    assert room.take(4, 40)


def test_a_snapshot_beyond_the_room_is_refused_with_the_setting(tmp_path: Path) -> None:
    rig = MoverRig(tmp_path, make_hello(tmp_path), in_process=True)
    head = some_tokens(2 * CHUNK_TOKENS)
    rig.suspend("s", head)
    rig.local._room = PlanRoom(100)
    first, second = rig.open_load("s", head), rig.open_load("s", head)
    assert (first.chunks, second.chunks) == ([0, 1], [])
    assert "mover_memory_bytes" in second.causes[0]["detail"]
    assert "mover_memory_bytes" in rig.open_suspend("s", head, 2).causes[0]["detail"]
    rig.send(protocol.ClosePlan(first.plan_id))
    assert rig.open_load("s", head).chunks == [0, 1]
    rig.close()


class Watcher:
    """Notes the most private memory that a process has while this runs."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            (line,) = (
                line for line in self._status.read_text().splitlines() if line.startswith("RssAnon")
            )
            self.most_bytes = max(self.most_bytes, int(line.split()[1]) << 10)


@pytest.mark.parametrize("lossy", ["", "fp8"])
def test_a_session_larger_than_the_bound_is_moved_within_it(tmp_path: Path, lossy: str) -> None:
    hello = replace(
        make_hello(tmp_path, a_fingerprint(lossy=lossy)),
        chunk_bytes=CHUNK_BYTES,
        region_chunks=CHUNKS,
        codec="auto",
        memory_bytes=180 * MIB,
        write_threads=4,
    )
    assert hello.memory_bytes < CHUNKS * CHUNK_BYTES
    raw = [bf16_bytes(seed, CHUNK_BYTES) for seed in range(3)]
    items = [[chunk, chunk] for chunk in range(CHUNKS)]
    head = some_tokens(CHUNKS * CHUNK_TOKENS)
    rig = MoverRig(tmp_path, hello, in_process=False)
    assert isinstance(rig.link, MoverClient)
    with Watcher(rig.link.pid) as watcher:
        for chunk in range(CHUNKS):
            rig.region[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] = raw[chunk % 3]
        suspend = rig.open_suspend("s", head)
        assert rig.store_chunks(suspend.plan_id, items).causes == []
        assert rig.finish_suspend(suspend.plan_id).snapshot is not None
        rig.region[:] = bytes(len(rig.region))
        rig.send(protocol.OpenLoad(7, TENANT, "s", 1, "", to_bytes(head)))
        assert rig.wait_for(protocol.LoadOpened).chunks == list(range(CHUNKS))
        assert rig.load(7, items).failed == []
    stored = [as_stored(Codec.FP8_BFLOAT16, each) for each in raw] if lossy else raw
    assert all(rig.slot(chunk) == stored[chunk % 3] for chunk in range(CHUNKS))
    rig.close()
    assert 40 * MIB < watcher.most_bytes < hello.memory_bytes
