"""``sessiond store rebuild-registry`` as an operator calls it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessiond.app.main import main
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.keys import KeyRing
from sessiond.registry import Registry
from sessiond.store.codecs import Codec
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SESSION, SnapshotPlan, write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))
REBUILD = ("store", "rebuild-registry")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a store of one session, and no registry."""
    store = Store.open(tmp_path / "store", KeyRing.from_server_key(KEY))
    store.write_session(SessionRecord(DEFAULT_TENANT, SESSION, 1.0, 1.0, pinned=True))
    write_snapshot(store, SnapshotPlan(tenant=DEFAULT_TENANT, chunk_bytes=600, codec=Codec.RAW))
    (tmp_path / "server.key").touch(0o600)
    (tmp_path / "server.key").write_bytes(KEY)
    monkeypatch.setenv("SESSIOND_STORE_ROOT", str(store.root))
    monkeypatch.setenv("SESSIOND_KEY_FILE", str(tmp_path / "server.key"))
    monkeypatch.setenv("SESSIOND_REGISTRY_URL", f"sqlite:///{tmp_path / 'registry.db'}")
    return tmp_path


def test_a_lost_registry_comes_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REBUILD, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["created"] == 1
    assert not (home / "registry.db").exists()
    assert main(REBUILD) == 0
    assert "sessions brought back: 1" in capsys.readouterr().out
    registry = Registry.open(f"sqlite:///{home / 'registry.db'}")
    assert registry.get_session(DEFAULT_TENANT, SESSION).pinned
    registry.close()
    assert main([*REBUILD, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == 1


def test_what_cannot_be_read_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_byte(next(home.rglob("1.manifest")), 200)
    assert main(REBUILD) == 1
    assert "1.manifest: " in capsys.readouterr().out


def test_another_key_and_a_missing_store(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "server.key").write_bytes(bytes(32))
    assert main([*REBUILD, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "store_key"
    assert main([*REBUILD, "--store-root", str(home / "nowhere")]) == 2
    assert not (home / "nowhere").exists()
    assert not (home / "registry.db").exists()
