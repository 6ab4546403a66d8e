from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.domain.errors import StoreError, StoreFullError
from sessiond.store.fileio import DurableFile, FileOps, Publish, store_errors, try_lock
from sessiond.testing.files import FaultyOps


@pytest.fixture
def folder_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def publish(ops: FileOps, folder_fd: int, data: bytes, how: Publish) -> None:
    with DurableFile(ops, folder_fd) as file:
        file.write(data, 0)
        file.publish(folder_fd, "name", how)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_create_never_replaces(tmp_path: Path, folder_fd: int) -> None:
    publish(FileOps(), folder_fd, b"first", Publish.CREATE)
    with pytest.raises(FileExistsError):
        publish(FileOps(), folder_fd, b"second", Publish.CREATE)
    assert (tmp_path / "name").read_bytes() == b"first"
    assert names(tmp_path) == ["name"]


@pytest.mark.parametrize("how", [Publish.REPLACE, Publish.HINT])
def test_replace_replaces(tmp_path: Path, folder_fd: int, how: Publish) -> None:
    publish(FileOps(), folder_fd, b"first", how)
    publish(FileOps(), folder_fd, b"second", how)
    assert (tmp_path / "name").read_bytes() == b"second"
    assert names(tmp_path) == ["name"]


@pytest.mark.parametrize("how", list(Publish))
@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "link", "rename"])
def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path, folder_fd: int, how: Publish, call: str
) -> None:
    ops = FaultyOps()
    ops.fail(call, errno.EIO)
    try:
        publish(ops, folder_fd, b"data", how)
    except OSError:
        assert names(tmp_path) == []
    else:  # this way of publishing does not make the call
        assert names(tmp_path) == ["name"]


def test_a_name_that_is_not_known_to_be_durable_is_taken_back(
    tmp_path: Path, folder_fd: int
) -> None:
    ops = FaultyOps()
    ops.fail("sync", errno.EIO, skip=1)  # the folder's, after the file's
    with pytest.raises(OSError, match="Input/output"):
        publish(ops, folder_fd, b"data", Publish.CREATE)
    assert names(tmp_path) == []


def test_a_sweep_between_creation_and_lock_is_survived(tmp_path: Path, folder_fd: int) -> None:
    class SweptOnce(FileOps):
        swept = False

        def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
            fd = super().open(name, flags, dir_fd=dir_fd)
            if not self.swept:
                self.swept = True
                os.unlink(name, dir_fd=dir_fd)
            return fd

    publish(SweptOnce(), folder_fd, b"data", Publish.CREATE)
    assert names(tmp_path) == ["name"]


def test_the_writer_keeps_its_lock_under_the_new_name(tmp_path: Path, folder_fd: int) -> None:
    with DurableFile(FileOps(), folder_fd) as file:
        file.publish(folder_fd, "name", Publish.CREATE)
        fd = os.open(tmp_path / "name", os.O_RDONLY)
        try:
            assert not try_lock(fd, exclusive=True)
            assert try_lock(fd, exclusive=False)
        finally:
            os.close(fd)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, StoreFullError), (errno.EDQUOT, StoreFullError), (errno.EIO, StoreError)],
)
def test_system_errors_become_store_errors_without_paths(
    number: int, expected: type[StoreError]
) -> None:
    with pytest.raises(expected) as caught, store_errors("Doing it"):
        raise OSError(number, os.strerror(number), "/a/secret/path")
    assert type(caught.value) is expected
    assert "secret" not in caught.value.message
    assert caught.value.message.startswith("Doing it failed: ")
