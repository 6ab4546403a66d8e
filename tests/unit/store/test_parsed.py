"""What was parsed is used again only as long as the file is certainly the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sessiond.domain.errors import StoreCorruptError
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.tokens import token_ids
from sessiond.store.fileio import REAL_OPS
from sessiond.store.parsed import ParsedFiles, Stamp
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SESSION, TENANT, write_snapshot

PLACE = (("folder",), "file")
SECOND_NS = 1_000_000_000


class Folder:
    """A folder with one file, of which all parsing is counted."""

    def __init__(self, path: Path, limit_bytes: int = 1 << 20) -> None:
        self.path, self.file = path, path / "file"
        self.files = ParsedFiles(limit_bytes)
        self.parsed: list[bytes] = []

    def write(self, data: bytes, name: str = "file") -> None:
        """Replace it, as the store does, and wait until its time has passed."""
        fresh = self.path / "fresh"
        fresh.write_bytes(data)
        fresh.rename(self.path / name)
        time.sleep(0.06)

    def read(self, name: str = "file") -> bytes:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self.files.read(REAL_OPS, (PLACE[0], name), fd, 1000, self._parse)
        finally:
            os.close(fd)

    def _parse(self, data: bytes) -> bytes:
        self.parsed.append(data)
        if data == b"bad":
            raise StoreCorruptError("It is bad.")
        return data


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_what_did_not_change_is_parsed_once(folder: Folder) -> None:
    folder.write(b"one")
    assert [folder.read() for _ in range(3)] == [b"one"] * 3
    assert folder.parsed == [b"one"]


def test_what_took_its_place_is_read(folder: Folder) -> None:
    for data in (b"one", b"two", b"one"):
        folder.write(data)
        assert folder.read() == data


def test_a_change_in_place_is_seen_though_its_time_was_set_back(folder: Folder) -> None:
    folder.write(b"one")
    folder.read()
    info = folder.file.stat()
    with folder.file.open("r+b") as file:
        file.write(b"two")
    os.utime(folder.file, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert folder.read() == b"two"


def test_errors_are_not_kept(folder: Folder) -> None:
    folder.write(b"bad")
    for _ in range(2):
        with pytest.raises(StoreCorruptError):
            folder.read()
    assert folder.parsed == [b"bad", b"bad"]
    folder.file.unlink()
    with pytest.raises(FileNotFoundError):
        folder.read()


def test_what_is_no_file_any_more_is_refused(folder: Folder) -> None:
    folder.write(b"one")
    folder.read()
    folder.file.rename(folder.path / "elsewhere")
    folder.file.symlink_to("elsewhere")
    with pytest.raises(StoreCorruptError):
        folder.read()
    folder.file.unlink()
    os.mkfifo(folder.file)
    with pytest.raises(StoreCorruptError):
        folder.read()


def test_the_least_used_go_when_there_is_no_room(tmp_path: Path) -> None:
    folder = Folder(tmp_path, limit_bytes=3000)  # two small files
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    time.sleep(0.06)
    for name in ("a", "b", "a", "c", "a", "b"):
        folder.read(name)
    assert folder.parsed == [b"a", b"b", b"c", b"b"]


@pytest.mark.parametrize(
    ("modified_ns", "changed_ns", "age_ns", "settled"),
    [
        (5, 5, 40_000_000, False),  # the clock may not have ticked since
        (5, 5, 60_000_000, True),
        (5, 59_000_000, 60_000_000, False),
        (0, 0, 60_000_000, False),  # whole seconds: that clock may be a coarse one
        (0, 0, 2 * SECOND_NS, False),
        (0, 0, 3 * SECOND_NS, True),
        (0, 5, 60_000_000, True),  # a time that was set, and one that the system took
        (5, 5, -1, False),  # from the future
    ],
)
def test_only_what_is_older_than_a_tick_is_certain(
    modified_ns: int,
    changed_ns: int,
    age_ns: int,
    settled: bool,  # noqa: FBT001 - a column of the table
) -> None:
    now_ns = 1_800_000_000 * SECOND_NS
    stamp = Stamp(1, 2, 3, now_ns + modified_ns, now_ns + changed_ns)
    assert stamp.is_settled(now_ns + age_ns) is settled


def a_head(sequence: int) -> Head:
    branch = Branch(token_ids([sequence] * 50), "", "5" * 32, float(sequence), TurnSplit(40))
    return Head(TENANT, SESSION, "e" * 32, sequence, 0, float(sequence), (branch,))


def test_a_head_that_is_rewritten_in_the_same_moment_is_never_an_old_one(store: Store) -> None:
    """Inodes are used again at once, and all these files have the same size."""
    for sequence in range(100, 220):
        store.write_head(a_head(sequence))
        (head,) = store.read_heads(TENANT, SESSION)
        assert head == a_head(sequence)


def test_a_manifest_that_is_damaged_after_it_was_read_is_not_read_again(store: Store) -> None:
    manifest = write_snapshot(store)
    time.sleep(0.06)
    for _ in range(2):
        assert store.read_manifest(TENANT, SESSION, 1) == manifest
    (path,) = store.root.glob("sessions/*/*/1.manifest")
    flip_byte(path, 200)
    with pytest.raises(StoreCorruptError):
        store.read_manifest(TENANT, SESSION, 1)


def test_a_file_that_is_another_sessions_is_refused_though_it_was_parsed(store: Store) -> None:
    store.write_head(a_head(100))
    other = TenantId("other")
    store.write_head(Head(other, SessionId("s"), "e" * 32, 1, 0, 1.0, ()))
    mine, theirs = sorted(store.root.glob("sessions/*/*/heads/*"), key=lambda p: p.stat().st_size)
    time.sleep(0.06)
    assert store.read_heads(TENANT, SESSION)
    theirs.write_bytes(mine.read_bytes())
    time.sleep(0.06)
    assert [store.read_heads(TENANT, SESSION) for _ in range(2)] == [[], []]
