"""What ``verify --repair`` changes: damage goes out of the way, leftovers go away.

Nothing that can still be used is removed, and nothing is removed for its damage.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.store import layout
from sessiond.store.catalogue import segment_ids
from sessiond.store.engines import dead_engines, remove_dead_engines
from sessiond.store.fileio import lock_exclusive
from sessiond.store.notes import MAX_NOTES_BYTES
from sessiond.store.quarantine import quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sessiond.domain.keys import KeyRing
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree

#: A note in quarantine without its file may be one whose file is being moved now.
_NOTE_AGE_S = 600.0


def set_aside(
    tree: Tree, folder: Folder, name: str, read: Callable[[], object], *, lock: Folder | None = None
) -> str:
    """Quarantine a file if *read* finds it damaged once more; returns its new name, or nothing.

    :param lock: the folder to lock meanwhile, so that nobody puts another file in its place;
        *folder* if not given.
    """
    try:
        with _locked(tree, folder if lock is None else lock):
            try:
                read()
            except StoreCorruptError as error:
                return quarantine(tree, folder, name, error.message)
            except StoreError:
                return ""  # nothing is moved for what the system says about it
    except FileNotFoundError:
        pass  # somebody else took it away
    return ""


def remove_leftovers(tree: Tree, keys: KeyRing) -> int:
    """Remove what dead writers, dead engines and crashes left; returns how many files.

    A file that names shared memory stays: it is the only record of it, for the next engine.

    :raises OSError: a folder could not be read.
    """
    sharing = {engine.engine_id for engine in dead_engines(tree, keys) if engine.shared_files}
    return (
        tree.sweep_tmp()
        + len(remove_dead_engines(tree, sharing))
        + _remove_lone_bad_notes(tree)
        + _remove_lone_quarantine_notes(tree)
    )


def unreadable_notes(tree: Tree) -> Iterator[tuple[Folder, str, StoreCorruptError]]:
    """Yield the files of notes that cannot be read at all; single bad lines are passed over."""
    for folder, name in _bad_notes(tree):
        try:
            tree.read(folder, name, MAX_NOTES_BYTES)
        except FileNotFoundError:
            continue
        except StoreCorruptError as error:
            yield folder, name, error


def _remove_lone_bad_notes(tree: Tree) -> int:
    segments = set(segment_ids(tree))
    lone = [
        (folder, name)
        for folder, name in _bad_notes(tree)
        if name.removesuffix(layout.BAD_NOTES_SUFFIX) not in segments
        # A segment may have got its name since.
        and not tree.exists(folder, f"{name.removesuffix(layout.BAD_NOTES_SUFFIX)}.seg")
    ]
    return sum(tree.unlink(folder, name) for folder, name in lone)


def _remove_lone_quarantine_notes(tree: Tree) -> int:
    names = set(tree.names(layout.QUARANTINE))
    removed = 0
    for name in sorted(names):
        of = name.removesuffix(layout.NOTE_SUFFIX)
        if of != name and of not in names and _is_old(tree, name):
            removed += tree.unlink(layout.QUARANTINE, name)
    return removed


def _is_old(tree: Tree, name: str) -> bool:
    try:
        with tree.folder(layout.QUARANTINE) as fd:
            modified_unix_s = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return time.time() - modified_unix_s > _NOTE_AGE_S


def _bad_notes(tree: Tree) -> Iterator[tuple[Folder, str]]:
    for part in tree.names(layout.SEGMENTS):
        folder = (*layout.SEGMENTS, part)
        for name in tree.names(folder):
            segment = name.removesuffix(layout.BAD_NOTES_SUFFIX)
            if segment != name and layout.is_folder_name(segment) and segment[:2] == part:
                yield folder, name


@contextlib.contextmanager
def _locked(tree: Tree, folder: Folder) -> Iterator[None]:
    with tree.folder(folder) as fd:
        lock_exclusive(fd)
        yield
