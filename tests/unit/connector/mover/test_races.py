"""A collection and a suspend that is about to reference what it collects meet at every moment."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.mover import server
from sessiond.domain.keys import KeyRing
from sessiond.store.store import Store
from sessiond.testing.files import SteppedOps
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    SESSION,
    TENANT,
    a_key_ring,
    bf16_bytes,
    load_snapshot,
    some_tokens,
)

#: An action that is held up by a lock goes on beside the call that it came before.
_HELD_UP_S = 0.05


class Meeting(SteppedOps):
    """Does something before the n-th call, of any kind; otherwise real file operations."""

    def __init__(self, at_call: int, action: Callable[[], None]) -> None:
        self._at_call = at_call
        self._thread = threading.Thread(target=action)
        self.calls = 0

    def before(self, call: str, name: str) -> None:
        """Count the call, and meet."""
        del call, name
        if self.calls == self._at_call:
            self._thread.start()
            self._thread.join(_HELD_UP_S)
        self.calls += 1

    def end(self) -> None:
        """Wait for the action, if it was begun."""
        if self._thread.ident is not None:
            self._thread.join()


def suspend(folder: Path) -> None:
    """Suspend the grown session, sharing what is there."""
    rig = MoverRig(folder, make_hello(folder), in_process=True)
    finished = rig.suspend(SESSION, some_tokens(4 * CHUNK_TOKENS), generation=2)
    rig.close()
    assert finished.snapshot is not None or finished.causes


def forget_and_collect(store: Store) -> None:
    """Make garbage of what a suspend that has not locked it yet would share, and collect it."""
    store.delete_snapshot(TENANT, SESSION, 1)
    store.collect()


def interrupted_suspend(folder: Path, monkeypatch: pytest.MonkeyPatch, at_call: int) -> int:
    other = Store.open(folder / "root", a_key_ring())
    meeting = Meeting(at_call, lambda: forget_and_collect(other))

    class MetStore(Store):
        @classmethod
        def open(cls, root: Path, keys: KeyRing, **options: Any) -> Store:  # noqa: ANN401 - as open
            return Store.open(root, keys, **{**options, "ops": meeting})

    with monkeypatch.context() as patch:
        patch.setattr(server, "Store", MetStore)
        suspend(folder)
    meeting.end()
    return meeting.calls


def interrupted_collection(folder: Path, _: pytest.MonkeyPatch, at_call: int) -> int:
    meeting = Meeting(at_call, lambda: suspend(folder))
    forget_and_collect(Store.open(folder / "root", a_key_ring(), ops=meeting))
    meeting.end()
    return meeting.calls


def require_whole(folder: Path) -> None:
    store = Store.open(folder / "root", a_key_ring())
    store.collect()
    referenced: set[str] = set()
    for generation in store.generations(TENANT, SESSION):
        manifest = store.read_manifest(TENANT, SESSION, generation)
        assert load_snapshot(store, manifest) == [
            bf16_bytes(seed) for seed in range(len(manifest.chunks))
        ]
        referenced |= set(manifest.segment_ids)
    assert {path.stem for path in (store.root / "segments").rglob("*.seg")} == referenced
    assert store.verify().is_clean
    assert list((store.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("interrupted", [interrupted_suspend, interrupted_collection])
def test_a_collection_and_a_suspend_that_meet_at_any_moment_lose_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Callable[[Path, pytest.MonkeyPatch, int], int],
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    rig = MoverRig(base, make_hello(base), in_process=True)
    assert rig.suspend(SESSION, some_tokens(3 * CHUNK_TOKENS)).snapshot
    rig.close()

    def trial(at_call: int) -> int:
        folder = tmp_path / f"at-{at_call}"
        shutil.copytree(base, folder)
        calls = interrupted(folder, monkeypatch, at_call)
        require_whole(folder)
        return calls

    calls = trial(-1)
    assert calls > 20
    for at_call in range(calls):
        trial(at_call)
