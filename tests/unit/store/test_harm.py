"""Any file of the store may be harmed in any way: the answer is a refusal, never wrong bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import (
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreError,
    StoreKeyError,
)
from sessiond.store.findings import VerifyOptions
from sessiond.store.inspect import describe
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    a_key_ring,
    expected_bytes,
    load_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = SnapshotPlan(chunks=3, chunk_bytes=600)
EXPECTED_REFUSALS = (StoreError, SnapshotNotFoundError, SessionNotFoundError)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "root"
    store = Store.open(root, a_key_ring())
    store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0))
    write_snapshot(store, PLAN)
    return root


def truncate(path: Path, number: int) -> None:
    os.truncate(path, number % (path.stat().st_size + 1))


def grow(path: Path, number: int) -> None:
    os.truncate(path, path.stat().st_size + 1 + number % 9000)


def zero(path: Path, number: int) -> None:
    del number
    path.write_bytes(bytes(path.stat().st_size))


def overwrite(path: Path, number: int) -> None:
    data = bytearray(path.read_bytes())
    place = number % len(data)
    data[place : place + 8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)


def flip(path: Path, number: int) -> None:
    flip_byte(path, number % path.stat().st_size)


def swap(path: Path, number: int) -> None:
    """Put another file of the store in its place."""
    root = next(parent for parent in path.parents if parent.name == "root")
    others = sorted(other for other in root.rglob("*") if other.is_file())
    path.write_bytes(others[number % len(others)].read_bytes())


def link_outside(path: Path, number: int) -> None:
    del number
    path.unlink()
    path.symlink_to("/etc/hostname")


def link_to_itself(path: Path, number: int) -> None:
    """Even a link to the right bytes is not followed."""
    del number
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def folder_instead(path: Path, number: int) -> None:
    del number
    path.unlink()
    path.mkdir()


def fifo_instead(path: Path, number: int) -> None:
    del number
    path.unlink()
    os.mkfifo(path)


def socket_instead(path: Path, number: int) -> None:
    del number
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def vanish(path: Path, number: int) -> None:
    del number
    path.unlink()


HARMS: list[Callable[[Path, int], None]] = [
    truncate, grow, zero, overwrite, flip, swap, link_outside, link_to_itself, folder_instead,
    fifo_instead, socket_instead, vanish,
]  # fmt: skip


def use(store: Store) -> None:
    """Do everything with it that a service does; wrong bytes fail, refusals pass."""
    try:
        manifest = store.read_manifest(TENANT, SESSION, 1)
        loaded = load_snapshot(store, manifest)
    except EXPECTED_REFUSALS:
        return
    for got, right in zip(loaded, expected_bytes(PLAN), strict=True):
        assert got == right or isinstance(got, StoreError)


def keep_house(store: Store) -> None:
    list(store.list_sessions())
    for action in (
        lambda: store.read_session(TENANT, SESSION),
        lambda: store.read_heads(TENANT, SESSION),
        store.collect,
        store.verify,
        lambda: store.verify(VerifyOptions(repair=True)),
        store.collect,
        lambda: store.delete_session(TENANT, SESSION),
    ):
        try:
            action()
        except EXPECTED_REFUSALS:
            continue


@given(harm=st.sampled_from(HARMS), victim=st.integers(0, 99), number=st.integers(0, 2**20))
def test_harm_to_any_file(
    pristine: Path,
    tmp_path_factory: pytest.TempPathFactory,
    harm: Callable[[Path, int], None],
    victim: int,
    number: int,
) -> None:
    root = tmp_path_factory.mktemp("harmed") / "root"
    shutil.copytree(pristine, root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = files[victim % len(files)]
    harm(path, number)
    with contextlib.suppress(*EXPECTED_REFUSALS):
        describe(path, a_key_ring())
    try:
        store = Store.open(root, a_key_ring())
    except StoreError:
        assert path.name == "FORMAT"
        return
    finally:
        assert Path("/etc/hostname").exists()
    use(store)
    keep_house(store)
    shutil.rmtree(root.parent)


@given(place=st.integers(0, 2**20), change=st.integers(1, 255))
def test_every_changed_byte_of_a_segment(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory, place: int, change: int
) -> None:
    root = tmp_path_factory.mktemp("flipped") / "root"
    shutil.copytree(pristine, root)
    (path,) = (root / "segments").rglob("*.seg")
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= change
    path.write_bytes(data)
    use(Store.open(root, a_key_ring()))
    shutil.rmtree(root.parent)


def test_a_linked_session_folder_is_not_followed(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(pristine, root)
    store = Store.open(root, a_key_ring())
    names = store.keys.tenant_name(TENANT), store.keys.session_name(TENANT, SESSION)
    folder = root.joinpath("sessions", *names)
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = sorted(path.name for path in (tmp_path / "outside").iterdir())
    for action in (
        lambda: store.read_manifest(TENANT, SESSION, 1),
        lambda: write_snapshot(store, SnapshotPlan(generation=2)),
        lambda: store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0)),
        lambda: store.delete_session(TENANT, SESSION),
    ):
        with pytest.raises((StoreError, SnapshotNotFoundError)):
            action()
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == before


def test_huge_files_cost_no_memory(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(pristine, root)
    for path in root.rglob("*"):
        if path.is_file() and path.name != "FORMAT":
            os.truncate(path, 1 << 40)  # sparse
    store = Store.open(root, a_key_ring())
    tracemalloc.start()
    try:
        use(store)
        list(store.list_sessions())
        assert not store.verify().is_clean
        store.collect()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_no_message_tells_a_path_of_this_machine(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(pristine, root)
    for path in root.rglob("*.manifest"):
        path.write_bytes(b"x")
    store = Store.open(root, a_key_ring())
    with pytest.raises(StoreError) as refused:
        store.read_manifest(TENANT, SESSION, 1)
    assert str(tmp_path) not in str(refused.value)
    assert not [fault for fault in store.verify().faults if str(tmp_path) in repr(fault)]


def test_a_ring_with_another_seal_key_is_told_from_damage(pristine: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(pristine, root)
    store = Store.open(root, a_key_ring())
    other = Store.open(tmp_path / "other", a_key_ring(9))
    write_snapshot(other, PLAN)
    foreign = next((tmp_path / "other").rglob("1.manifest"))
    next(root.rglob("1.manifest")).write_bytes(foreign.read_bytes())
    with pytest.raises(StoreKeyError):
        store.read_manifest(TENANT, SESSION, 1)
