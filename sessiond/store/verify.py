"""Reading everything that manifests promise, and saying what does not hold.

What is found is reported; with *repair*, what is certainly damaged is also taken out of the
way: broken manifests, heads and segments go to quarantine, bad chunks get a note, and notes on
chunks that read well again are removed. Without it nothing is changed.

The work is done in steps, each of which yields the bytes that it has read, so that whoever
drives it can do it slowly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.store import layout
from sessiond.store.catalogue import (
    find_session,
    read_manifest,
    record_from_manifest,
    segment_ids,
    session_folders,
    tenant_names,
)
from sessiond.store.engines import MAX_ENGINE_FILE_BYTES, engine_ids, unpack_engine
from sessiond.store.fileio import store_error, store_errors
from sessiond.store.findings import Owner, VerifyOptions, VerifyReport, fault_of
from sessiond.store.heads import unpack_head
from sessiond.store.notes import MAX_NOTES_BYTES
from sessiond.store.promises import Promises, SegmentCheck
from sessiond.store.repairs import remove_leftovers, set_aside, unreadable_notes
from sessiond.store.sealed import MAX_SEALED_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from sessiond.domain.heads import Head
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree

__all__ = ["Verification", "VerifyOptions", "VerifyReport", "verify"]

_T = TypeVar("_T")


class Verification:
    """One verification; :attr:`report` is true up to the last step."""

    def __init__(self, tree: Tree, keys: KeyRing, options: VerifyOptions) -> None:
        self._tree, self._keys, self._options = tree, keys, options
        self.report = VerifyReport()
        self.folders: Sequence[Folder] = ()  #: of the sessions; known after the first step
        self._segments = SegmentCheck(tree, options, self.report)

    def steps(self) -> Generator[int, None, None]:
        """Verify all that the options ask for.

        :raises StoreError: a folder could not be read.
        """
        with store_errors("Verifying"):
            tenant = self._options.tenant
            names = [self._keys.tenant_name(tenant)] if tenant else tenant_names(self._tree)
            by_tenant = [session_folders(self._tree, name) for name in names]
            self.folders = [folder for folders in by_tenant for folder in folders]
            yield 0
            for folders in by_tenant:
                self._segments.next_tenant()
                for folder in folders:
                    yield from self.session(folder)
            if tenant is None:
                yield from self._rest()

    def session(self, folder: Folder) -> Generator[int, None, None]:
        """Verify one session: its file, its heads, its snapshots and their chunks."""
        try:
            yield from self._session(folder)
        except OSError as error:
            failed = store_error("Working on the session's files", error)
            self.report.add(fault_of(folder, "folder", failed))

    def _session(self, folder: Folder) -> Generator[int, None, None]:
        with self._tree.folder(folder):
            pass  # a symlink, or a file, in its place is told as such
        found = find_session(self._tree, self._keys, folder)
        record = found.record or record_from_manifest(self._tree, self._keys, folder)
        owner = Owner(record.tenant, record.session) if record else Owner()
        if found.error:
            # Never moved away: it may be a tombstone, and only a new record may replace it.
            where = (*folder, layout.SESSION_FILE)
            self.report.add(fault_of(where, "session", found.error, owner=owner))
        if record and record.is_tombstone:
            self.report.tombstones += 1
            return  # what a cut deletion left is the collector's
        self.report.sessions += 1
        promises = Promises(folder, owner)
        for name in self._tree.names(folder):
            if manifest := self._manifest(folder, name, owner):
                promises.add(manifest)
                yield 0
        for name in self._tree.names(layout.heads_folder(folder)):
            self._head(folder, name, owner)
        yield from self._segments.promises(promises)

    def _manifest(self, folder: Folder, name: str, owner: Owner) -> Manifest | None:
        generation = layout.generation_of(name)
        if generation is None:
            return None
        read = partial(read_manifest, self._tree, self._keys, folder, generation)
        owned = replace(owner, generations=(generation,))
        manifest = self._sound((*folder, name), "manifest", read, owned, lock=folder)
        self.report.snapshots += manifest is not None
        return manifest

    def _head(self, session: Folder, name: str, owner: Owner) -> None:
        folder = layout.heads_folder(session)

        def read() -> Head | bool:
            data = self._tree.read(folder, name, MAX_SEALED_BYTES)
            # A power failure may leave an empty one: so heads are written.
            return unpack_head(data, self._keys) if data else False

        if name.endswith(layout.HEAD_SUFFIX):
            head = self._sound((*folder, name), "head", read, owner, lock=session)
            self.report.heads += bool(head)

    def _sound(
        self, where: Folder, what: str, read: Callable[[], _T], owner: Owner, *, lock: Folder
    ) -> _T | None:
        """Return what *read* returns; ``None`` if the file is damaged, which is reported."""
        try:
            return read()
        except FileNotFoundError:
            return None  # gone meanwhile
        except StoreError as error:
            moved = ""
            # Only what is damaged for certain: not another key's, not another version's file.
            if self._options.repair and isinstance(error, StoreCorruptError):
                moved = set_aside(self._tree, where[:-1], where[-1], read, lock=lock)
            fault = fault_of(where, what, error, owner=owner, quarantined_as=moved)
            self.report.add(fault)
            return None

    def _rest(self) -> Generator[int, None, None]:
        """Verify what belongs to no session, and remove what belongs to nobody."""
        for segment_id in segment_ids(self._tree):
            if segment_id not in self._segments.promised:
                self._segments.unreferenced(segment_id)
                yield 0
        self._engines()
        self._notes()
        if self._options.repair:
            self.report.leftovers_removed += remove_leftovers(self._tree, self._keys)

    def _engines(self) -> None:
        for engine_id in engine_ids(self._tree):
            name = layout.engine_file(engine_id)
            try:
                data = self._tree.read(layout.ENGINES, name, MAX_ENGINE_FILE_BYTES)
                if data:  # a power failure may leave an empty one
                    unpack_engine(data, self._keys)
            except FileNotFoundError:
                continue  # the engine is just starting or ending
            except StoreError as error:
                self.report.add(fault_of((*layout.ENGINES, name), "engine", error))

    def _notes(self) -> None:
        for folder, name, error in unreadable_notes(self._tree):
            moved = ""
            if self._options.repair:
                read = partial(self._tree.read, folder, name, MAX_NOTES_BYTES)
                moved = set_aside(self._tree, folder, name, read)
            self.report.add(fault_of((*folder, name), "notes", error, quarantined_as=moved))


def verify(
    tree: Tree,
    keys: KeyRing,
    options: VerifyOptions,
    progress: Callable[[Verification], None] | None = None,
) -> VerifyReport:
    """Verify manifests, segments and chunks; *progress* hears of every step.

    :raises StoreError: a folder could not be read.
    """
    run = Verification(tree, keys, options)
    for _ in run.steps():
        if progress:
            progress(run)
    return run.report
