"""What a store holds, found by walking its folders: the ground truth for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreError
from sessiond.store import layout
from sessiond.store.manifests import unpack_manifest
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.sessions import MAX_SESSION_FILE_BYTES, SessionRecord, unpack_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.ids import SegmentId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree


def tenant_names(tree: Tree) -> list[str]:
    """Return the folder names of all tenants."""
    return [name for name in tree.names(layout.SESSIONS) if layout.is_folder_name(name)]


def session_folders(tree: Tree, tenant_name: str) -> list[Folder]:
    """Return the folders of all sessions of a tenant."""
    names = tree.names(layout.tenant_folder(tenant_name))
    return [
        layout.session_folder(tenant_name, name) for name in names if layout.is_folder_name(name)
    ]


def segment_ids(tree: Tree) -> list[SegmentId]:
    """Return the ids of all finished segments."""
    found = []
    for name in tree.names(layout.SEGMENTS):
        segments = map(layout.segment_of, tree.names((*layout.SEGMENTS, name)))
        found += [segment for segment in segments if segment and segment[:2] == name]
    return found


def list_sessions(
    tree: Tree, keys: KeyRing, tenant: TenantId | None = None
) -> Iterator[SessionRecord]:
    """Yield the record of every session, or of one tenant's; tombstones included.

    A session whose file was never written is told from its newest manifest. One whose file
    is damaged is left out (``verify`` reports it): it may have been a tombstone.
    """
    names = tenant_names(tree) if tenant is None else [keys.tenant_name(tenant)]
    for tenant_name in names:
        for folder in session_folders(tree, tenant_name):
            record = _record(tree, keys, folder)
            if record and _folder_of(record, keys) == folder:
                yield record


def _folder_of(record: SessionRecord, keys: KeyRing) -> Folder:
    tenant_name = keys.tenant_name(record.tenant)
    return layout.session_folder(tenant_name, keys.session_name(record.tenant, record.session))


def _record(tree: Tree, keys: KeyRing, folder: Folder) -> SessionRecord | None:
    try:
        data = tree.read(folder, layout.SESSION_FILE, MAX_SESSION_FILE_BYTES)
        return unpack_session(data, keys)
    except FileNotFoundError:
        return _record_from_manifest(tree, keys, folder)
    except (StoreError, NotADirectoryError):
        return None


def _record_from_manifest(tree: Tree, keys: KeyRing, folder: Folder) -> SessionRecord | None:
    generations = filter(None, map(layout.generation_of, tree.names(folder)))
    for generation in sorted(generations, reverse=True):
        try:
            data = tree.read(folder, layout.manifest_file(generation), MAX_SEALED_BYTES)
            manifest = unpack_manifest(data, keys)
        except (StoreError, SnapshotNotFoundError, FileNotFoundError):
            continue
        created = manifest.created_unix_s
        return SessionRecord(manifest.tenant, manifest.session, created, created)
    return None
