"""What the doctor reads of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessiond.app.doctor.facts import Look, find_facts, huge_pages, usable_cores

AFFINITY = float(len(os.sched_getaffinity(0)))
V2 = {"proc/self/cgroup": "0::/engine/inner\n"}
V1 = {"proc/self/cgroup": "9:name=systemd:/\n4:memory:/m\n1:cpu,cpuacct:/engine\n0::/\n"}


def look(folder: Path, files: dict[str, str]) -> Look:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Look(folder / "sys", folder / "proc", folder / "shm")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, AFFINITY),
        (V2, AFFINITY),
        ({**V2, "sys/fs/cgroup/engine/inner/cpu.max": "max 100000\n"}, AFFINITY),
        ({**V2, "sys/fs/cgroup/engine/inner/cpu.max": "50000 100000\n"}, 0.5),
        # The group's own quota is high, the one around it low.
        (
            {
                **V2,
                "sys/fs/cgroup/engine/inner/cpu.max": "900000 100000\n",
                "sys/fs/cgroup/engine/cpu.max": "25000 100000\n",
            },
            0.25,
        ),
        # In a container the group is mounted at the top.
        ({**V2, "sys/fs/cgroup/cpu.max": "75000 100000\n"}, 0.75),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/engine/cpu.cfs_quota_us": "60000\n",
                "sys/fs/cgroup/cpu/engine/cpu.cfs_period_us": "100000\n",
            },
            0.6,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/engine/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/engine/cpu.cfs_period_us": "100000\n",
            },
            AFFINITY,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "garbage\n"}, AFFINITY),
    ],
)
def test_how_many_cores_may_be_used(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    assert usable_cores(look(tmp_path, files)) == pytest.approx(cores)


@pytest.mark.parametrize(
    ("text", "word"),
    [("always [madvise] never\n", "madvise"), ("always madvise [never]\n", "never"), ("", "")],
)
def test_whether_there_are_huge_pages(tmp_path: Path, text: str, word: str) -> None:
    files = {"sys/kernel/mm/transparent_hugepage/enabled": text}
    assert huge_pages(look(tmp_path, files)) == word


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    assert huge_pages(Look(tmp_path, tmp_path, tmp_path)) == ""


@pytest.mark.parametrize(("mode", "is_ours"), [(0o700, True), (0o750, False), (0o701, False)])
def test_who_can_enter_the_store(tmp_path: Path, mode: int, *, is_ours: bool) -> None:
    root, folder = tmp_path / "store", tmp_path / "folder"
    root.mkdir()
    root.chmod(mode)
    folder.mkdir()
    assert find_facts(root, folder, None).is_ours is is_ours


def test_facts_of_this_machine(tmp_path: Path) -> None:
    facts = find_facts(tmp_path / "none", tmp_path, 12345)
    assert (facts.exists, facts.is_ours, facts.floor_bytes) == (False, False, 12345)
    assert 0 < facts.usable_cores <= facts.cores
    assert 0 < facts.free_bytes <= facts.total_bytes
    assert facts.memory_free_bytes > 0
    assert abs(facts.clock_offset_s) < 60
    assert facts.file_system != "unknown"
