"""``store verify`` on real stores that were really damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import SessionId
from sessiond.domain.keys import KeyRing
from sessiond.store.codecs import Codec
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import (
    SESSION,
    TENANT,
    SnapshotPlan,
    expected_bytes,
    load_snapshot,
    some_tokens,
    write_snapshot,
)
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.cli.conftest import Run

PLAN = SnapshotPlan(chunks=3, chunk_bytes=600, codec=Codec.ZSTD)
OTHER = replace(PLAN, session=SessionId("s-2"), seed=5)
KEY = bytes(range(32))

Verify = tuple[ExitStatus | int, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    store = Store.open(folder / "store", KeyRing.from_server_key(KEY))
    for plan in (PLAN, OTHER):
        store.write_session(SessionRecord(TENANT, plan.session, 1.0, 1.0))
        write_snapshot(store, plan)
    branch = Branch(some_tokens(40), "", "", 1.0, TurnSplit())
    store.write_head(Head(TENANT, SESSION, "e1", 1, 0, 1.0, (branch,)))
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(KEY)
    return folder


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "it")
    return tmp_path / "it" / "store"


@pytest.fixture
def verify(run: Run, root: Path) -> Callable[..., Verify]:
    """Return a call of the command: its exit status, its report and its error."""

    def call(*options: str) -> Verify:
        ended = run("store", "verify", "--store-root", str(root), "--json", *options)
        told = json.loads(ended.stdout) if ended.stdout else {}
        return ended.exit_code, told, json.loads(ended.stderr) if ended.stderr else {}

    return call


def of(root: Path, pattern: str) -> Path:
    return min(root.rglob(pattern), key=lambda path: path.name)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30
    }


def test_a_whole_store(verify: Callable[..., Verify], root: Path, run: Run) -> None:
    before = contents(root)
    status, told, error = verify()
    assert (status, error) == (0, {})
    assert (told["sessions"], told["snapshots"], told["heads"]) == (2, 2, 1)
    assert (told["segments"], told["chunks"], told["damaged"]) == (2, 6, 0)
    assert told["stored_bytes"] > 6 * 100
    assert told["faults"] == []
    assert contents(root) == before
    shown = run("store", "verify", "--store-root", str(root)).stdout
    assert "snapshots" in shown


@pytest.mark.parametrize("written", ["0", "-1", "1.01", "nan", "x"])
def test_a_sample_is_a_share(verify: Callable[..., Verify], written: str) -> None:
    status, told, error = verify("--sample", written)
    assert (status, told, error["code"]) == (ExitStatus.USAGE, {}, "usage")


def test_a_sample_reads_less(verify: Callable[..., Verify]) -> None:
    status, told, _ = verify("--sample", "0.000001")
    assert (status, told["chunks"], told["chunks_skipped"]) == (0, 0, 6)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _grow(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _foreign(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" * 512)


def _claim(path: Path) -> None:
    """Claim lengths of 2^40 all over the file's beginning."""
    path.write_bytes(b"".join([path.read_bytes()[:8], (1 << 40).to_bytes(8, "little") * 40]))


def _link(path: Path) -> None:
    target = path.rename(path.with_name("elsewhere"))
    path.symlink_to(target)


def _swap(path: Path) -> None:
    """Put the other session's file in its place: right in itself, and in the wrong place."""
    top = next(parent for parent in path.parents if parent.name == "store")
    others = [other for other in top.rglob(f"*{path.suffix}") if other != path]
    path.write_bytes(others[0].read_bytes())


def _flip(path: Path) -> None:
    flip_byte(path, 60)


_HARMS = [_truncate, _grow, _zero, _foreign, _claim, _link, _swap, _flip]
_VICTIMS = {"*.seg": "segment", "*.manifest": "manifest", "session.json": "session"}


@pytest.mark.parametrize("harm", _HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("victim", _VICTIMS)
def test_every_harm_is_found_and_nothing_that_is_whole_is_lost(
    verify: Callable[..., Verify], root: Path, victim: str, harm: Callable[[Path], None]
) -> None:
    path = of(root, victim)
    harm(path)
    others = {name: data for name, data in contents(root).items() if path.name not in name}
    assert others
    status, told, error = verify()
    assert (status, error["code"]) == (1, "damage_found")
    assert _VICTIMS[victim] in {fault["what"] for fault in told["faults"]}
    assert told["quarantined"] == 0
    status, told, _ = verify("--repair")
    assert status == 1
    moved = [fault for fault in told["faults"] if fault["quarantined_as"]]
    assert bool(moved) == (victim != "session.json")
    assert others.items() <= contents(root).items()
    assert len(list((root / "quarantine").glob("*.note"))) == len(moved)


def test_a_bad_chunk_names_its_session_and_is_noted(
    verify: Callable[..., Verify], root: Path, run: Run
) -> None:
    store = Store.open(root, KeyRing.from_server_key(KEY))
    bad = store.read_manifest(TENANT, SESSION, 1).chunks[1]
    path = of(root, f"{bad.segment_id}.seg")
    flip_byte(path, bad.offset_bytes + 9)
    before = contents(root)
    (fault,) = verify()[1]["faults"]
    assert (fault["what"], fault["offset_bytes"]) == ("chunk", bad.offset_bytes)
    assert fault["owner"] == {"tenant": TENANT, "session": SESSION, "generations": [1]}
    assert contents(root) == before
    assert f"{TENANT}/{SESSION} 1" in run("store", "verify", "--store-root", str(root)).stdout
    verify("--repair")
    assert store.bad_chunks(bad.segment_id) == {bad.offset_bytes}
    flip_byte(path, bad.offset_bytes + 9)
    status, told, _ = verify("--repair")
    assert (status, told["notes_removed"]) == (0, 1)
    assert load_snapshot(store, store.read_manifest(TENANT, SESSION, 1)) == expected_bytes(PLAN)


def test_a_head_that_rotted_and_one_that_a_power_failure_emptied(
    verify: Callable[..., Verify], root: Path
) -> None:
    path = of(root, "*.head")
    path.write_bytes(b"")
    assert verify()[0] == 0
    path.write_bytes(b"rot")
    assert verify()[1]["faults"][0]["what"] == "head"
    assert verify("--repair")[1]["quarantined"] == 1
    assert verify()[0] == 0


def test_leftovers_go_and_what_is_in_use_stays(verify: Callable[..., Verify], root: Path) -> None:
    folder = of(root, "*.seg").parent
    (root / "tmp" / "dead.tmp").write_bytes(b"x")
    (folder / f"{folder.name}{'0' * 30}.bad").write_bytes(b"")
    note = root / "quarantine" / "0-x.note"
    note.write_bytes(b"{}")
    os.utime(note, (1.0, 1.0))
    (root / "README").write_text("the operator's own")
    held = Store.open(root, KeyRing.from_server_key(KEY)).new_segment(TENANT, PLAN.bytes_digest)
    with held:
        assert verify()[0] == 0
        status, told, _ = verify("--repair")
        assert (status, told["leftovers_removed"]) == (0, 3)
        assert len(list((root / "tmp").iterdir())) == 1
    assert (root / "README").exists()


def test_another_key_is_no_damage(verify: Callable[..., Verify], root: Path) -> None:
    before = contents(root)
    key_file = root.parent / "server.key"
    key_file.write_bytes(bytes(32))
    status, told, error = verify("--repair")
    assert (status, told, error["code"]) == (ExitStatus.STORE, {}, "store_key")
    key_file.write_bytes(KEY)
    other = Store.open(root.parent / "other", KeyRing.from_server_key(bytes(32)))
    write_snapshot(other, PLAN)
    of(root, "1.manifest").write_bytes(of(other.root, "1.manifest").read_bytes())
    before = contents(root)
    status, told, error = verify("--repair")
    assert (status, told["damaged"], told["strange"]) == (ExitStatus.STORE, 0, 1)
    assert error["code"] == "store_key"
    assert contents(root) == before


def test_a_store_without_a_readable_format(verify: Callable[..., Verify], root: Path) -> None:
    (root / "FORMAT").write_bytes(b"\0" * 50)
    status, told, error = verify()
    assert (status, told, error["code"]) == (1, {}, "damage_found")


def test_no_store_at_all(run: Run, root: Path) -> None:
    key = str(root.parent / "server.key")
    ended = run("store", "verify", "--store-root", str(root / "nowhere"), "--key-file", key)
    assert ended.exit_code == ExitStatus.STORE
    assert not (root / "nowhere").exists()


def test_the_rest_of_sessionctl_needs_no_store() -> None:
    code = "import sys; import sessiond_cli.main; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
