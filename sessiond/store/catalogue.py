"""What a store holds, found by walking its folders: the ground truth for the registry."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.store import layout
from sessiond.store.fileio import store_error
from sessiond.store.manifests import unpack_manifest
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.sessions import MAX_SESSION_FILE_BYTES, SessionRecord, unpack_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.ids import SegmentId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.fileio import FileOps
    from sessiond.store.layout import Folder
    from sessiond.store.parsed import ParsedFiles
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


def session_folders_between(tree: Tree, from_name: str, to_name: str) -> list[Folder]:
    """Return all tenants' session folders by their own names, ``[from_name, to_name)``, in order.

    These names are HMACs: they spread evenly, whatever the tenants.
    """
    folders = [folder for name in tenant_names(tree) for folder in session_folders(tree, name)]
    found = [folder for folder in folders if from_name <= folder[-1] < to_name]
    return sorted(found, key=lambda folder: (folder[-1], folder))


def segment_ids(tree: Tree) -> list[SegmentId]:
    """Return the ids of all finished segments."""
    found = []
    for name in tree.names(layout.SEGMENTS):
        segments = map(layout.segment_of, tree.names((*layout.SEGMENTS, name)))
        found += [segment for segment in segments if segment and segment[:2] == name]
    return found


@dataclass(frozen=True)
class FoundSession:
    """What the folder of one session tells of it."""

    folder: Folder
    record: SessionRecord | None  #: ``None``: nobody can tell, or there is nothing
    error: StoreError | None = None  #: why the session's file cannot be used
    is_guess: bool = False  #: there is no file; the record is what the newest manifest tells


def find_session(tree: Tree, keys: KeyRing, folder: Folder) -> FoundSession:
    """Return what a session's folder tells of it; never raises for a file that is damaged.

    :raises OSError: the system could not read.
    """
    try:
        data = tree.read(folder, layout.SESSION_FILE, MAX_SESSION_FILE_BYTES)
        record = unpack_session(data, keys)
    except FileNotFoundError:
        guess = record_from_manifest(tree, keys, folder)
        return FoundSession(folder, guess, is_guess=guess is not None)
    except StoreError as error:
        return FoundSession(folder, None, error)
    if _folder_of(record, keys) != folder:
        return FoundSession(folder, None, StoreCorruptError("The file is another session's."))
    return FoundSession(folder, record)


def scan_sessions(
    tree: Tree, keys: KeyRing, tenant: TenantId | None = None
) -> Iterator[FoundSession]:
    """Yield what the folder of every session, or of one tenant's, tells of it."""
    for folder in _session_folders(tree, keys, tenant):
        try:
            yield find_session(tree, keys, folder)
        except OSError as error:
            yield FoundSession(folder, None, store_error("Reading a session's file", error))


def _session_folders(tree: Tree, keys: KeyRing, tenant: TenantId | None) -> Iterator[Folder]:
    names = tenant_names(tree) if tenant is None else [keys.tenant_name(tenant)]
    for tenant_name in names:
        yield from session_folders(tree, tenant_name)


def list_sessions(tree: Tree, keys: KeyRing) -> Iterator[SessionRecord]:
    """Yield the record of every session; tombstones included.

    A session whose file was never written is told from its newest manifest. One whose file
    is damaged is left out (``verify`` reports it): it may have been a tombstone.

    :raises OSError: the system could not read one.
    """
    for folder in _session_folders(tree, keys, None):
        try:
            found = find_session(tree, keys, folder)
        except NotADirectoryError:
            continue  # a foreign file in a session's place must not cost the others
        if found.record is not None:
            yield found.record


def read_manifest(
    tree: Tree, keys: KeyRing, folder: Folder, generation: int, parsed: ParsedFiles | None = None
) -> Manifest:
    """Return a manifest that is what its place says.

    :param parsed: what was read before; without it, the disk is read
    :raises FileNotFoundError: there is none.
    :raises StoreError: it cannot be used.
    """
    if parsed is not None:
        with tree.folder(folder) as folder_fd:
            return read_manifest_at(tree.ops, keys, (folder, folder_fd), generation, parsed)
    data = tree.read(folder, layout.manifest_file(generation), MAX_SEALED_BYTES)
    return _in_its_place(unpack_manifest(data, keys), keys, folder, generation)


def read_manifest_at(
    ops: FileOps,
    keys: KeyRing,
    where: tuple[Folder, int],
    generation: int,
    parsed: ParsedFiles,
) -> Manifest:
    """Return the same as :func:`read_manifest`, of a folder that is open.

    :param where: the folder, and its descriptor
    :raises FileNotFoundError: there is none.
    :raises StoreError: it cannot be used.
    """
    folder, folder_fd = where
    place, unpack = (folder, layout.manifest_file(generation)), partial(unpack_manifest, keys=keys)
    manifest = parsed.read(ops, place, folder_fd, MAX_SEALED_BYTES, unpack)
    return _in_its_place(manifest, keys, folder, generation)


def _in_its_place(manifest: Manifest, keys: KeyRing, folder: Folder, generation: int) -> Manifest:
    names = keys.tenant_name(manifest.tenant), keys.session_name(manifest.tenant, manifest.session)
    if (layout.session_folder(*names), manifest.generation) != (folder, generation):
        raise StoreCorruptError("The manifest is that of another snapshot.")
    return manifest


def record_from_manifest(tree: Tree, keys: KeyRing, folder: Folder) -> SessionRecord | None:
    """Return what the newest readable manifest tells of its session: names and a time."""
    generations = filter(None, map(layout.generation_of, tree.names(folder)))
    for generation in sorted(generations, reverse=True):
        try:
            manifest = read_manifest(tree, keys, folder, generation)
        except (StoreError, FileNotFoundError):
            continue
        created = manifest.created_unix_s
        return SessionRecord(manifest.tenant, manifest.session, created, created)
    return None


def _folder_of(record: SessionRecord, keys: KeyRing) -> Folder:
    tenant_name = keys.tenant_name(record.tenant)
    return layout.session_folder(tenant_name, keys.session_name(record.tenant, record.session))
