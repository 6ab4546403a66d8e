"""One look at a session's folder tells what three calls told."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.domain.heads import Head
from sessiond.domain.ids import SessionId
from sessiond.store import layout
from sessiond.store.fileio import FileOps
from sessiond.store.sessionlook import SessionLook
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SESSION, TENANT, SnapshotPlan, a_key_ring, write_snapshot


class CountingOps(FileOps):
    """Notes which names are opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        self.opened.append(name)
        return super().open(name, flags, dir_fd=dir_fd)


@pytest.fixture
def ops() -> CountingOps:
    return CountingOps()


@pytest.fixture
def store(tmp_path: Path, ops: CountingOps) -> Store:
    return Store.open(tmp_path / "store", a_key_ring(), ops=ops, floor_bytes=0)


def a_head(engine_id: str) -> Head:
    return Head(TENANT, SESSION, engine_id, 1, 0, 1000.0, ())


def filled(store: Store) -> None:
    for generation in (1, 2):
        write_snapshot(store, SnapshotPlan(generation=generation))
    for engine_id in ("e" * 32, "f" * 32):
        store.write_head(a_head(engine_id))


def manifest_path(store: Store, generation: int) -> Path:
    (found,) = store.root.rglob(layout.manifest_file(generation))
    return found


def test_it_tells_what_the_single_calls_tell(store: Store) -> None:
    filled(store)
    found = store.look(TENANT, SESSION)
    assert list(found.generations) == store.generations(TENANT, SESSION) == [1, 2]
    assert found.newest == store.read_manifest(TENANT, SESSION, 2)
    assert list(found.heads) == store.read_heads(TENANT, SESSION)
    assert store.read_head(TENANT, SESSION, "f" * 32) in found.heads
    assert len(found.heads) == 2


def test_there_is_one_way_to_the_folder(store: Store, ops: CountingOps) -> None:
    filled(store)
    name = store.keys.session_name(TENANT, SESSION)
    ops.opened.clear()
    store.look(TENANT, SESSION)
    assert ops.opened.count(name) == 1


def test_of_a_session_that_left_nothing_there_is_nothing(store: Store) -> None:
    assert store.look(TENANT, SESSION) == SessionLook()
    assert store.read_head(TENANT, SESSION, "e" * 32) is None
    write_snapshot(store)
    found = store.look(TENANT, SESSION)
    assert (found.generations, found.heads) == ((1,), ())
    assert store.read_head(TENANT, SESSION, "e" * 32) is None
    assert store.look(TENANT, SessionId("other")) == SessionLook()


def test_a_manifest_that_is_no_use_is_left_out(store: Store) -> None:
    filled(store)
    flip_byte(manifest_path(store, 2), 100)
    assert store.look(TENANT, SESSION).generations == (1, 2)
    assert store.look(TENANT, SESSION).newest is None
    manifest_path(store, 2).unlink()
    found = store.look(TENANT, SESSION)
    assert (found.generations, found.newest) == ((1,), store.read_manifest(TENANT, SESSION, 1))


def test_a_manifest_in_anothers_place_is_none(store: Store) -> None:
    filled(store)
    manifest_path(store, 1).replace(manifest_path(store, 2))
    assert store.look(TENANT, SESSION).newest is None


def test_a_head_of_another_session_is_none(store: Store) -> None:
    other = SessionId("other")
    filled(store)
    store.write_head(Head(TENANT, other, "e" * 32, 1, 0, 1000.0, ()))
    name = store.keys.session_name(TENANT, other)
    (foreign,) = (path for path in store.root.rglob("*.head") if name in path.parts)
    (own,) = (
        path
        for path in store.root.rglob(layout.head_file("e" * 32))
        if path.parent.parent.name != name
    )
    foreign.replace(own)
    assert store.read_head(TENANT, SESSION, "e" * 32) is None
    assert [head.engine_id for head in store.look(TENANT, SESSION).heads] == ["f" * 32]
