"""Whether a model's files still are those that were digested."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sessiond.connector.digests import DigestCache
from sessiond.testing.snapshots import a_key_ring


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of a model's files."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors", "README.md"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def digested(model: Path) -> DigestCache:
    cache = DigestCache(model.parent / "digests", a_key_ring())
    cache.files_digest(model.glob("*.safetensors"), model)
    return cache


def write(path: Path) -> None:
    path.write_bytes(b"other bytes")


def replace_by_the_same(path: Path) -> None:
    copied = Path(shutil.copy(path, path.with_suffix(".new")))
    copied.replace(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def append_and_keep_the_time(path: Path) -> None:
    before = path.stat()
    with path.open("ab") as file:
        file.write(b"!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def make_unreadable_by_name(path: Path) -> None:
    path.rename(path.with_suffix(".gone"))


def test_none_has_changed(model: Path) -> None:
    cache = digested(model)
    (model / "README.md").write_text("nobody asked for its digest")
    assert cache.changed_files() == []


@pytest.mark.parametrize(
    "change",
    [write, replace_by_the_same, touch, append_and_keep_the_time, make_unreadable_by_name],
)
def test_a_changed_file_is_named(model: Path, change: Callable[[Path], None]) -> None:
    cache = digested(model)
    change(model / "b.safetensors")
    assert cache.changed_files() == ["b.safetensors"]


def test_a_link_that_leads_elsewhere_is_another_file(model: Path) -> None:
    link = model / "c.safetensors"
    link.symlink_to("a.safetensors")
    cache = digested(model)
    link.unlink()
    link.symlink_to("b.safetensors")
    assert cache.changed_files() == ["c.safetensors"]


def test_whoever_knows_the_digest_already_sees_it_too(model: Path) -> None:
    digested(model)
    again = digested(model)
    write(model / "a.safetensors")
    assert again.changed_files() == ["a.safetensors"]
