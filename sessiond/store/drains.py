"""Engines that are being emptied: their marks, and what they have of sessions."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json
from sessiond.domain.errors import EngineNotFoundError, StoreError
from sessiond.store import layout
from sessiond.store.catalogue import tenant_names
from sessiond.store.engines import engine_is_live
from sessiond.store.fileio import Publish, store_errors
from sessiond.store.heads import unpack_head
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.tree import list_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.heads import Head
    from sessiond.domain.keys import KeyRing
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree


class Drains:
    """Marks engines, for everybody who looks at the store."""

    def __init__(self, tree: Tree, keys: KeyRing) -> None:
        self._tree, self._keys = tree, keys

    def mark(self, engine_id: str, note: dict[str, JsonValue]) -> None:
        """Mark a live engine until it ends, or :meth:`unmark`; repeating it replaces the note.

        :param note: for people who look into the file
        :raises EngineNotFoundError: it does not live.
        :raises StoreError: it could not be marked.
        """
        if not engine_is_live(self._tree, engine_id):
            raise EngineNotFoundError
        with store_errors("Marking an engine"):
            # A hint: it means nothing without the engine, which no power failure survives.
            name, data = layout.drain_file(engine_id), canonical_json(note) + b"\n"
            self._tree.write(layout.ENGINES, name, data, Publish.HINT)

    def unmark(self, engine_id: str) -> bool:
        """Take the mark away; return whether there was one.

        :raises StoreError: it could not be removed.
        """
        if not layout.is_engine_id(engine_id):
            return False
        with store_errors("Unmarking an engine"):
            return self._tree.unlink(layout.ENGINES, layout.drain_file(engine_id), sync=False)

    def is_marked(self, engine_id: str) -> bool:
        """Whether an engine has a mark.

        :raises StoreError: the store cannot be read.
        """
        with store_errors("Looking for an engine's mark"):
            return self._tree.exists(layout.ENGINES, layout.drain_file(engine_id))

    def heads_of(self, engine_id: str) -> Iterator[Head]:
        """Yield the heads that an engine has written, of all sessions; unreadable ones not.

        One look for each session of the store, some microseconds long.

        :raises StoreError: the store's folders cannot be read.
        """
        name = layout.head_file(engine_id)
        with store_errors("Looking for an engine's heads"):
            for folder in self._folders_with(name):
                head = self._head(folder, name)
                if head is not None and head.engine_id == engine_id:
                    yield head

    def _folders_with(self, name: str) -> Iterator[Folder]:
        for tenant_name in tenant_names(self._tree):
            # A foreign file in a tenant's place must not cost the others.
            gone = (FileNotFoundError, NotADirectoryError)
            with suppress(*gone), self._tree.folder(layout.tenant_folder(tenant_name)) as tenant_fd:
                for session_name in filter(layout.is_folder_name, list_names(tenant_fd)):
                    place = "/".join((*layout.heads_folder((session_name,)), name))
                    if _is_there(place, tenant_fd):
                        yield layout.heads_folder(layout.session_folder(tenant_name, session_name))

    def _head(self, folder: Folder, name: str) -> Head | None:
        try:
            return unpack_head(self._tree.read(folder, name, MAX_SEALED_BYTES), self._keys)
        except (StoreError, OSError):
            return None  # a head is a hint


def _is_there(place: str, folder_fd: int) -> bool:
    try:
        os.stat(place, dir_fd=folder_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
