"""SIGKILL at every step of a suspend, a load, a delete, a collection and a rebuild.

Each operation is done once to count its steps (the calls that change the disk, and the commits
to the registry), then once for each of them on a copy of the same beginning, and a process is
killed before that step. What comes afterwards must find the old state or the new one, every
byte right, and nothing that stays for ever.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from sessiond.connector import leftovers
from sessiond.store.store import Store
from sessiond.testing.killed_engine import SESSION, TENANT, chunk_bytes
from sessiond.testing.snapshots import a_key_ring, load_snapshot
from sessiond.testing.zygote import Ended, Zygote, zygotes

#: A trial mostly waits, for processes and for the disk.
PARALLEL = 2 * (os.cpu_count() or 1)
PATIENCE_S = 20.0


class Field:
    """Warm processes, and folders that are copies of one."""

    def __init__(self, folder: Path, warm: list[Zygote]) -> None:
        self.base = folder / "base"
        self.base.mkdir()
        self._folder = folder
        self._idle: queue.SimpleQueue[Zygote] = queue.SimpleQueue()
        for zygote in warm:
            self._idle.put(zygote)

    @contextmanager
    def _zygote(self) -> Iterator[Zygote]:
        zygote = self._idle.get()
        try:
            yield zygote
        finally:
            self._idle.put(zygote)

    def run(self, role: str, folder: Path, **arguments: Any) -> Ended:  # noqa: ANN401 - the role's
        """Run a role over a folder."""
        with self._zygote() as zygote:
            return zygote.run(role, folder=str(folder), **arguments)

    def told(self, role: str, folder: Path, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        """Run a role that nobody kills."""
        ended = self.run(role, folder, **arguments)
        assert ended.signal == 0
        return ended.result

    def copy(self, name: str) -> Path:
        """Return a new copy of the beginning."""
        return Path(shutil.copytree(self.base, self._folder / name))

    def for_each_step(self, steps: int, trial: Callable[[Path, int], None]) -> None:
        """Try each step on a copy of its own."""
        assert steps > 1

        def one(step: int) -> None:
            folder = self.copy(f"step-{step}")
            trial(folder, step)
            shutil.rmtree(folder)

        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in pool.map(one, range(1, steps + 1)):
                pass


@pytest.fixture(scope="module")
def warm() -> Iterator[list[Zygote]]:
    before = unmapped_shared_memory()
    with zygotes(PARALLEL) as those:
        yield those
    deadline_s = time.monotonic() + PATIENCE_S
    while not unmapped_shared_memory() <= before:  # an engine that starts somewhere else has some
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture
def field(tmp_path: Path, warm: list[Zygote]) -> Field:
    return Field(tmp_path, warm)


def unmapped_shared_memory() -> set[str]:
    """Return the names of shared memory that no process uses."""
    mapped = leftovers.mapped_by(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return {path.name for path in Path("/dev/shm").iterdir()} - {file.name for file in mapped}


def require_whole(folder: Path) -> None:
    """After what a next engine does, every byte is right and every file has a reason."""
    store = Store.open(folder / "root", a_key_ring())
    store.sweep_tmp()
    store.remove_dead_engines()
    store.collect()
    assert store.verify().is_clean
    referenced: set[str] = set()
    for generation in store.generations(TENANT, SESSION):
        manifest = store.read_manifest(TENANT, SESSION, generation)
        expected = [chunk_bytes(chunk) for chunk in range(len(manifest.chunks))]
        assert load_snapshot(store, manifest) == expected
        referenced |= set(manifest.segment_ids)
    assert {path.stem for path in (store.root / "segments").rglob("*.seg")} == referenced
    assert list((store.root / "tmp").iterdir()) == []
    assert list((store.root / "engines").iterdir()) == []


# The mover and the engine


@pytest.fixture
def suspended(field: Field) -> Field:
    """A beginning with one snapshot, of three chunks."""
    assert field.told("first", field.base, chunks=3)["committed"]
    return field


def test_a_mover_killed_at_any_step_of_a_suspend(suspended: Field) -> None:
    counted = suspended.told("suspend", suspended.copy("counted"), step=0, victim="mover")
    assert counted["generations"] == [1, 2]

    def trial(folder: Path, step: int) -> None:
        told = suspended.told("suspend", folder, step=step, victim="mover")
        assert told["generations"] in ([1], [1, 2])
        if told["first"]["committed"]:
            assert told["generations"] == [1, 2]
        else:
            assert [cause["reason"] for cause in told["first"]["causes"]] == ["mover_failed"]
        assert told["second"]["generation"] == told["generations"][-1] + 1
        assert told["second"]["chunks"] == 5
        require_whole(folder)

    suspended.for_each_step(counted["steps"], trial)


def test_an_engine_killed_at_any_step_of_a_suspend(suspended: Field) -> None:
    counted = suspended.told("suspend", suspended.copy("counted"), step=0, victim="engine")

    def trial(folder: Path, step: int) -> None:
        ended = suspended.run("suspend", folder, step=step, victim="engine")
        assert ended.signal == SIGKILL
        told = suspended.told("next", folder, chunks=5)
        assert told["generations"] in ([1], [1, 2])
        chunks = 2 + len(told["generations"])
        assert told["loaded"] == [list(range(chunks)), True]
        assert told["suspended"]["generation"] == told["generations"][-1] + 1
        assert told["suspended"]["chunks"] == 5
        require_whole(folder)

    suspended.for_each_step(counted["steps"], trial)


def test_a_mover_killed_at_any_step_of_a_load(suspended: Field) -> None:
    counted = suspended.told("load", suspended.copy("counted"), step=0)
    assert counted["first"] == [[0, 1, 2], True]

    def trial(folder: Path, step: int) -> None:
        told = suspended.told("load", folder, step=step)
        assert told["first"] in ([[], True], [[0, 1, 2], True])
        assert told["second"] == [[0, 1, 2], True]

    suspended.for_each_step(counted["steps"], trial)


# The daemon


@pytest.fixture
def served(field: Field) -> Field:
    """A beginning with a session that has one snapshot, and with garbage for a collection."""
    told = field.told("prepare", field.base)
    assert told["generations"] == told["rows"] == [1]
    return field


def count_steps(served: Field, action: str) -> int:
    counted = served.told("act", served.copy("counted"), action=action, step=0)
    return int(counted["steps"])


def killed_and_recovered(served: Field, folder: Path, action: str, step: int) -> dict[str, Any]:
    """Kill a daemon, start another one, and require that it leaves everything in order."""
    ended = served.run("act", folder, action=action, step=step)
    assert ended.signal == SIGKILL
    told = served.told("recover", folder)
    assert told["rows"] == told["generations"]
    assert (told["leaked"], told["temporary"], told["clean"]) == ([], [], True)
    return told


def require_usable(told: dict[str, Any], *, lost_growth: bool = False) -> None:
    assert told["exists"]
    assert not told["tombstone"]
    assert told["used"] == {
        "outcome": "partial" if lost_growth else "restored",
        "reasons": ["engine_lost_kv"] if lost_growth else [],
        "missing_tokens": 0,
        # The session's growth is suspended once, by the killed daemon or by the next one.
        "generation": 2,
    }


def test_a_daemon_killed_at_any_step_of_a_suspend(served: Field) -> None:
    def trial(folder: Path, step: int) -> None:
        told = killed_and_recovered(served, folder, "suspend", step)
        assert told["generations"] in ([1], [1, 2])
        # Its engine lived in the same process: what was not stored died with that.
        require_usable(told, lost_growth=told["generations"] == [1])

    served.for_each_step(count_steps(served, "suspend"), trial)


def test_a_daemon_killed_at_any_step_of_a_resume(served: Field) -> None:
    def trial(folder: Path, step: int) -> None:
        told = killed_and_recovered(served, folder, "resume", step)
        assert told["generations"] == [1]
        require_usable(told)

    served.for_each_step(count_steps(served, "resume"), trial)


def test_a_daemon_killed_at_any_step_of_a_delete(served: Field) -> None:
    def trial(folder: Path, step: int) -> None:
        told = killed_and_recovered(served, folder, "delete", step)
        if told["exists"]:
            assert told["generations"] == [1]
            require_usable(told)
        else:
            assert told["tombstone"]
            assert told["generations"] == []

    served.for_each_step(count_steps(served, "delete"), trial)


def test_a_daemon_killed_at_any_step_of_a_collection(served: Field) -> None:
    def trial(folder: Path, step: int) -> None:
        told = killed_and_recovered(served, folder, "collect", step)
        assert told["generations"] == [1]
        require_usable(told)

    served.for_each_step(count_steps(served, "collect"), trial)


def test_a_rebuild_killed_at_any_step(served: Field) -> None:
    served.told("forget_registry", served.base)

    def trial(folder: Path, step: int) -> None:
        ended = served.run("act", folder, action="rebuild", step=step)
        assert ended.signal == SIGKILL
        served.told("rebuild", folder)
        told = served.told("recover", folder)
        assert told["rows"] == told["generations"] == [1]
        require_usable(told)

    served.for_each_step(count_steps(served, "rebuild"), trial)
