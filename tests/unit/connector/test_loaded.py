from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from sessiond.connector.loaded import is_changed_since, process_start_ns, server_start_ns


def pause() -> int:
    """Return a time that is after everything before and before everything after."""
    time.sleep(0.02)
    now_ns = time.time_ns()
    time.sleep(0.02)
    return now_ns


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "v1" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_text("old")
    return path


def rewrite(path: Path) -> None:
    path.write_text("new")


def rewrite_with_an_old_time(path: Path) -> None:
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text("new")
    os.utime(path, ns=times)


def replace(path: Path) -> None:
    path.with_suffix(".new").write_text("new")
    os.utime(path.with_suffix(".new"), (1, 1))
    path.with_suffix(".new").rename(path)


def swap_folders(path: Path) -> None:
    other = path.parent.with_name("v2")
    path.parent.rename(path.parent.with_name("v0"))
    other.rename(path.parent)


@pytest.mark.parametrize("change", [rewrite, rewrite_with_an_old_time, replace])
def test_a_file_that_is_changed_later_is_noticed(
    weights: Path, change: Callable[[Path], None]
) -> None:
    assert is_changed_since(weights, 0)
    loaded_ns = pause()
    assert not is_changed_since(weights, loaded_ns)
    change(weights)
    assert is_changed_since(weights, loaded_ns)


def test_a_folder_that_takes_its_place_is_noticed(weights: Path) -> None:
    shutil.copytree(weights.parent, weights.parent.with_name("v2"))
    loaded_ns = pause()
    assert not is_changed_since(weights, loaded_ns)
    swap_folders(weights)
    assert is_changed_since(weights, loaded_ns)


def test_a_neighbour_does_not_matter(weights: Path) -> None:
    loaded_ns = pause()
    (weights.parent.parent / "other").mkdir()
    (weights.parent / "README.md").write_text("new")
    assert not is_changed_since(weights, loaded_ns)


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_leads_elsewhere_is_noticed(weights: Path, absolute: bool) -> None:  # noqa: FBT001
    shutil.copytree(weights.parent, weights.parent.with_name("v2"))
    current = weights.parent.with_name("current")
    current.symlink_to(weights.parent if absolute else Path("../models/v1"))
    loaded_ns = pause()
    assert not is_changed_since(current / weights.name, loaded_ns)
    current.unlink()
    current.symlink_to(weights.parent.with_name("v2"))
    assert is_changed_since(current / weights.name, loaded_ns)


def test_a_download_is_no_change(tmp_path: Path) -> None:
    loaded_ns = pause()
    link = tmp_path / "hub" / "models--a--b" / "snapshots" / "c" / "model.safetensors"
    blob = tmp_path / "hub" / "models--a--b" / "blobs" / "name"
    for path in (link, blob):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_text("weights")
    link.symlink_to(blob)
    assert not is_changed_since(link, loaded_ns, named=True)
    assert is_changed_since(link, loaded_ns, named=False)


def test_links_that_never_end_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links"):
        is_changed_since(tmp_path / "a", time.time_ns() + 10**9)


def test_a_process_began_when_it_began() -> None:
    before_ns = time.time_ns()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_ns = process_start_ns(child.pid)
        after_ns = time.time_ns()
        child.communicate(b"\n")
    grain_ns = 2 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert before_ns - grain_ns <= started_ns <= after_ns + grain_ns


GRAIN_NS = 100_000_000


def test_a_server_began_before_the_engine_that_it_made() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as engine:
        told_ns = engine.submit(server_start_ns).result(60)
    assert abs(told_ns - process_start_ns(os.getpid())) < GRAIN_NS


def test_a_server_that_runs_its_engine_itself_is_no_child_of_its_shell() -> None:
    script = (
        "import os; from sessiond.connector.loaded import process_start_ns, server_start_ns;"
        "print(server_start_ns() - process_start_ns(os.getpid()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert abs(int(done.stdout)) < GRAIN_NS
