from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.testing.served import ServedWorld
    from tests.integration.cli.conftest import Ask, Run


@pytest.fixture
def root(served: ServedWorld) -> Path:
    """Return a store with a file of each kind."""
    served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    served.run(served.world.suspend)
    return served.world.store.root


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "server.key"
    path.touch(0o600)
    path.write_bytes(bytes(range(32)))
    return path


def _files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix != ".lock"]


def test_every_file_of_a_store_can_be_read(root: Path, key_file: Path, run: Run, ask: Ask) -> None:
    kinds = set()
    for path in _files(root):
        told = ask("store", "inspect", str(path), "--key-file", str(key_file))
        kinds.add(told["file"])
        assert told.get("seal", "valid") == "valid", path
        shown = run("store", "inspect", str(path), "--key-file", str(key_file)).stdout
        assert told["file"] in shown
        assert max(len(line) for line in shown.splitlines()) < 600
    assert kinds == {"format", "engine", "session", "head", "manifest", "segment"}


def test_without_the_key_all_but_the_seals_is_told(root: Path, ask: Ask) -> None:
    (manifest,) = root.rglob("*.manifest")
    told = ask("store", "inspect", str(manifest))
    assert told["seal"] == "not checked"
    assert len(told["chunks"]) == 6


def test_another_key(root: Path, key_file: Path, ask: Ask) -> None:
    key_file.write_bytes(bytes(32))
    (manifest,) = root.rglob("*.manifest")
    told = ask("store", "inspect", str(manifest), "--key-file", str(key_file))
    assert told["seal"] == "made with another key"


def test_a_damaged_file(root: Path, run: Run) -> None:
    (manifest,) = root.rglob("*.manifest")
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes()[:40])
    ended = run("store", "inspect", str(manifest), "--json")
    assert ended.exit_code == ExitStatus.STORE
    assert json.loads(ended.stderr)["code"] == "snapshot_corrupt"


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"[1, 2]", b"{", b"\xff\xfe"])
def test_a_file_of_something_else(tmp_path: Path, run: Run, content: bytes) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    ended = run("store", "inspect", str(path))
    assert ended.exit_code == ExitStatus.STORE
    assert ended.stderr.startswith("sessionctl: ")


def test_a_key_file_that_is_none(root: Path, key_file: Path, run: Run) -> None:
    key_file.write_bytes(b"short")
    ended = run("store", "inspect", str(root / "FORMAT"), "--key-file", str(key_file), "--json")
    assert ended.exit_code == ExitStatus.INVALID
    key_file.chmod(0o644)
    ended = run("store", "inspect", str(root / "FORMAT"), "--key-file", str(key_file), "--json")
    assert ended.exit_code in (ExitStatus.STORE, ExitStatus.INVALID)
