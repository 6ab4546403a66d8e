from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import ConfigurationError, StoreFullError, StoreInsecureError
from sessiond.store.keyfile import load_server_key
from sessiond.testing.files import Crash, CrashingOps, FaultyOps

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"
    key = load_server_key(path, create=True)
    assert len(key) == 32
    assert load_server_key(path, create=False) == key
    assert load_server_key(path, create=True) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_two_who_start_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: load_server_key(tmp_path / "k", create=True), range(16)))
    assert len(set(keys)) == 1


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        load_server_key(tmp_path / "key", create=False)


@pytest.mark.parametrize("data", [b"", b"x" * 31, b"x" * 33])
def test_a_file_of_another_length_holds_no_key_and_is_not_replaced(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError):
        load_server_key(path, create=True)
    assert path.read_bytes() == data


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    load_server_key(path, create=True)
    path.chmod(mode)
    with pytest.raises(StoreInsecureError):
        load_server_key(path, create=True)


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    load_server_key(tmp_path / "real", create=True)
    (tmp_path / "key").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigurationError):
        load_server_key(tmp_path / "key", create=True)


def test_a_full_disk_leaves_no_half_key(tmp_path: Path) -> None:
    ops = FaultyOps()
    ops.fail("pwrite", errno.ENOSPC)
    with pytest.raises(StoreFullError):
        load_server_key(tmp_path / "key", create=True, ops=ops)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", range(5))
def test_a_crash_leaves_a_whole_key_or_none(tmp_path: Path, step: int) -> None:
    ops = CrashingOps(step, power_failure=True)
    with pytest.raises(Crash):
        load_server_key(tmp_path / "key", create=True, ops=ops)
    assert len(load_server_key(tmp_path / "key", create=True)) == 32
