from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector.leftovers import family_of_this_process, mapped_by, reclaim
from sessiond.domain.engines import SharedFile
from sessiond.domain.ids import new_hex_id

SHM = Path("/dev/shm")


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a file of this test's own."""
    name = f"psm_test{new_hex_id()}"
    yield name
    for path in SHM.glob(f"*{name.removeprefix('psm_')}*"):
        path.unlink()


def make(name: str) -> SharedFile:
    path = SHM / name
    path.write_bytes(bytes(4096))
    return SharedFile(name, path.stat().st_ino)


def map_here(name: str) -> mmap.mmap:
    with (SHM / name).open("r+b") as file:
        return mmap.mmap(file.fileno(), 4096)


@pytest.mark.parametrize("prefix", ["psm_", "sem.mp-", "vllm_offload_"])
def test_what_nobody_maps_is_removed(name: str, prefix: str) -> None:
    file = make(name.replace("psm_", prefix))
    assert reclaim([file]) == [file.name]
    assert not (SHM / file.name).exists()


def test_what_this_process_maps_stays(name: str) -> None:
    file = make(name)
    with map_here(name):
        assert reclaim([file]) == []
        assert (SHM / name).exists()


def test_what_another_process_maps_stays(name: str) -> None:
    file = make(name)
    code = (
        f"import mmap; f = open('/dev/shm/{name}', 'r+b'); m = mmap.mmap(f.fileno(), 4096); "
        "print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert reclaim([file]) == []
        other.communicate(b"\n")
    assert reclaim([file]) == [name]


def test_what_is_mapped_under_another_name_stays(name: str) -> None:
    # glibc makes a named semaphore under a name of its own, maps it and links it to its place.
    made = make(f"sem.{name}")
    with map_here(made.name):
        (SHM / made.name).rename(SHM / f"sem.mp-{name}")
        assert reclaim([SharedFile(f"sem.mp-{name}", made.inode)]) == []


def test_another_file_of_the_same_name_stays(name: str) -> None:
    old = make(name)
    (SHM / f"{name}-other").write_bytes(b"")
    (SHM / f"{name}-other").rename(SHM / name)
    assert reclaim([old]) == []
    assert (SHM / name).exists()


def test_what_is_gone_already_is_no_trouble(name: str) -> None:
    file = make(name)
    (SHM / name).unlink()
    assert reclaim([file]) == []


def test_each_is_judged_by_itself(name: str) -> None:
    kept, removed = make(name), make(f"{name}-b")
    with map_here(name):
        assert reclaim([kept, removed]) == [removed.name]


@pytest.mark.parametrize(
    "odd", ["test{}", "psm{}", "xpsm_{}", "psm_ {}", "psm_{}\nx", "psm_{} (deleted)"]
)
def test_files_of_other_names_stay(name: str, odd: str) -> None:
    file = make(odd.format(name.removeprefix("psm_")))
    assert reclaim([file]) == []
    assert (SHM / file.name).exists()


@pytest.mark.parametrize("inode", [None, 0])
@pytest.mark.parametrize("form", ["../..{}", "psm_/../../..{}", "{}"])
def test_a_path_is_no_name(tmp_path: Path, form: str, inode: int | None) -> None:
    victim = tmp_path / "psm_victim"
    victim.write_bytes(b"")
    known = victim.stat().st_ino if inode is None else inode
    assert reclaim([SharedFile(form.format(victim), known)]) == []
    assert victim.exists()


@pytest.mark.parametrize("odd", ["", ".", "..", "psm_", "psm_\0", "psm_" + "x" * 300])
def test_what_no_file_can_be_called_is_no_trouble(odd: str) -> None:
    assert reclaim([SharedFile(odd, 0), SharedFile(odd, 1)]) == []


def test_a_link_is_not_followed(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (SHM / name).symlink_to(victim)
    assert reclaim([SharedFile(name, victim.stat().st_ino)]) == []
    assert victim.exists()


def test_what_a_process_maps_is_found(name: str) -> None:
    file = make(name)
    with map_here(name):
        assert file in mapped_by([os.getpid()])
    assert file not in mapped_by([os.getpid()])


def test_an_unlinked_mapping_is_no_file(name: str) -> None:
    file = make(name)
    with map_here(name):
        (SHM / name).unlink()
        assert file not in mapped_by([os.getpid()])


def test_a_process_that_is_gone_maps_nothing() -> None:
    assert mapped_by([2**22 + 1]) == frozenset()


def test_the_family_is_parent_self_and_children() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        family = family_of_this_process()
        child.communicate(b"\n")
    assert {os.getppid(), os.getpid(), child.pid} <= set(family)
