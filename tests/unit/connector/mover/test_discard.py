"""A commit that was asked for and is taken back, because the engine's caches were reset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.mover import protocol, server
from sessiond.domain.keys import KeyRing
from sessiond.store.store import Store
from sessiond.testing.files import SteppedOps
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, SESSION, TENANT, some_tokens


class BeforeNaming(SteppedOps):
    """Does something before each file with such a name gets it."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self.action: Callable[[], None] = lambda: None
        self.met = 0

    def before(self, call: str, name: str) -> None:
        """Meet it."""
        if call in ("rename", "link") and name.endswith(self._suffix):
            self.met += 1
            self.action()


def handed_over(folder: Path) -> tuple[MoverRig, int]:
    """Return a mover that has got all chunks of a suspend, and its plan."""
    rig = MoverRig(folder, make_hello(folder), in_process=True)
    opened = rig.open_suspend(SESSION, some_tokens(3 * CHUNK_TOKENS))
    for chunk in range(3):
        rig.fill(chunk, seed=chunk)
    rig.store_chunks(opened.plan_id, [(chunk, chunk) for chunk in range(3)])
    return rig, opened.plan_id


def test_discarded_before_the_commit_nothing_is_written(tmp_path: Path) -> None:
    rig, plan_id = handed_over(tmp_path)
    rig.send(protocol.DiscardSuspend(plan_id))
    assert rig.finish_suspend(plan_id).snapshot is None
    assert rig.store.generations(TENANT, SESSION) == []
    assert list((rig.store.root / "segments").rglob("*.seg")) == []
    rig.close()


def test_discarded_while_segments_are_made_durable_no_manifest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = BeforeNaming(".seg")

    class MetStore(Store):
        @classmethod
        def open(cls, root: Path, keys: KeyRing, **options: Any) -> Store:  # noqa: ANN401 - as open
            return Store.open(root, keys, **{**options, "ops": ops})

    monkeypatch.setattr(server, "Store", MetStore)
    rig, plan_id = handed_over(tmp_path)
    ops.action = lambda: rig.send(protocol.DiscardSuspend(plan_id))
    assert rig.finish_suspend(plan_id).snapshot is None
    assert ops.met
    assert rig.store.generations(TENANT, SESSION) == []
    rig.store.collect()
    assert list((rig.store.root / "segments").rglob("*.seg")) == []
    rig.close()


def test_discarded_afterwards_it_stays(tmp_path: Path) -> None:
    rig, plan_id = handed_over(tmp_path)
    assert rig.finish_suspend(plan_id).snapshot is not None
    rig.send(protocol.DiscardSuspend(plan_id))
    assert rig.suspend(SESSION, some_tokens(4 * CHUNK_TOKENS), generation=2).snapshot is not None
    assert rig.store.generations(TENANT, SESSION) == [1, 2]
    rig.close()
