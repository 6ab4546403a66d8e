from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError, StoreError, StoreVersionError
from sessiond.store.inspect import describe
from sessiond.store.sessions import SessionRecord
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SESSION, TENANT, SnapshotPlan, a_key_ring, write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing
    from sessiond.store.store import Store


def shown(path: Path, keys: KeyRing | None) -> dict[str, Any]:
    value = describe(path, keys)
    json.dumps(value)  # plain JSON
    return cast("dict[str, Any]", value)


@pytest.fixture
def session_folder(store: Store) -> Path:
    write_snapshot(store, SnapshotPlan(chunks=2))
    store.write_session(SessionRecord(TENANT, SESSION, 1.0, 1.0))
    names = store.keys.tenant_name(TENANT), store.keys.session_name(TENANT, SESSION)
    return store.root.joinpath("sessions", *names)


def test_a_segment(store: Store, session_folder: Path) -> None:
    (path,) = (store.root / "segments").rglob("*.seg")
    value = shown(path, None)
    assert (value["file"], value["segment_id"]) == ("segment", path.stem)
    assert session_folder.parent.name == value["tenant_name"]
    assert [chunk["codec"] for chunk in value["chunks"]] == ["planar-zstd"] * 2
    assert value["file_bytes"] == path.stat().st_size


def test_a_manifest(session_folder: Path, keys: KeyRing) -> None:
    path = session_folder / "1.manifest"
    value = shown(path, keys)
    assert (value["file"], value["seal"], value["tenant"]) == ("manifest", "valid", TENANT)
    assert len(value["chunks"]) == 2
    assert value["totals"]["restorable_tokens"] == 32
    assert "tokens" not in value  # a prompt is nobody's business
    assert shown(path, None)["seal"] == "not checked"
    assert shown(path, a_key_ring(9))["seal"] == "made with another key"
    flip_byte(path, -1)
    assert shown(path, keys)["seal"] == "broken"


def test_small_files(store: Store, session_folder: Path, keys: KeyRing) -> None:
    path = session_folder / "session.json"
    value = shown(path, keys)
    assert (value["file"], value["seal"]) == ("session", "valid")
    assert value["record"]["tenant"] == TENANT
    assert shown(path, None)["seal"] == "not checked"
    assert shown(path, a_key_ring(9))["seal"] == "made with another key"
    path.write_text(path.read_text().replace('"pinned": false', '"pinned": true'))
    assert shown(path, keys)["seal"] == "broken"
    assert shown(store.root / "FORMAT", None)["version"] == 1


def test_notes(store: Store, session_folder: Path) -> None:
    del session_folder
    (segment,) = (store.root / "segments").rglob("*.seg")
    (segment_id,) = store.read_manifest(TENANT, SESSION, 1).segment_ids
    store.mark_bad(segment_id, 4096, "test")
    with segment.with_suffix(".bad").open("ab") as file:
        file.write(b'half a line {"offset')
    store.mark_bad(segment_id, 8192, "later")
    assert store.bad_chunks(segment_id) == {4096, 8192}
    value = shown(segment.with_suffix(".bad"), None)
    assert [note["why"] for note in value["notes"]] == ["test", "later"]


def test_what_is_no_file_of_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        describe(tmp_path / "missing", None)
    with pytest.raises(StoreCorruptError):
        describe(tmp_path, None)
    (tmp_path / "x.json").write_text('{"kind": "other"}')
    with pytest.raises(StoreCorruptError):
        describe(tmp_path / "x.json", None)


@given(st.binary(max_size=300), st.sampled_from(["a.seg", "a.manifest", "FORMAT", "a.bad"]))
def test_anything_may_be_looked_at(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    try:
        describe(path, a_key_ring())
    except (StoreCorruptError, StoreVersionError):
        return
    assert name == "a.bad"  # lines that cannot be read are skipped
