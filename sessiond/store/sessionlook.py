"""What a session's folder holds, read with one way to it: every turn asks for all of this."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreError
from sessiond.store import layout
from sessiond.store.catalogue import read_manifest_at
from sessiond.store.heads import unpack_head
from sessiond.store.sealed import MAX_SEALED_BYTES
from sessiond.store.tree import list_names

if TYPE_CHECKING:
    from sessiond.domain.heads import Head
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Manifest
    from sessiond.store.layout import Folder
    from sessiond.store.parsed import ParsedFiles
    from sessiond.store.tree import Tree


@dataclass(frozen=True)
class SessionLook:
    """What a session's folder holds at one moment."""

    generations: tuple[int, ...] = ()  #: that are committed, ascending
    newest: Manifest | None = None  #: the last one's; ``None`` if there is none, or it is no use
    heads: tuple[Head, ...] = ()  #: the readable ones, one for each engine that left one


class SessionLooks:
    """Looks at the folder of one session."""

    def __init__(
        self,
        tree: Tree,
        keys: KeyRing,
        parsed: ParsedFiles,
        session: tuple[TenantId, SessionId],
    ) -> None:
        self._tree, self._keys, self._parsed = tree, keys, parsed
        self._session = session
        tenant, session_id = session
        names = keys.tenant_name(tenant), keys.session_name(tenant, session_id)
        self._folder = layout.session_folder(*names)

    def everything(self) -> SessionLook:
        """Return what there is; nothing if there is no such folder."""
        try:
            with self._tree.folder(self._folder) as folder_fd:
                numbers = map(layout.generation_of, list_names(folder_fd))
                generations = tuple(sorted(number for number in numbers if number is not None))
                newest = self._manifest(generations[-1], folder_fd) if generations else None
                return SessionLook(generations, newest, tuple(self._heads_in(folder_fd)))
        except (FileNotFoundError, NotADirectoryError):
            return SessionLook()

    def heads(self) -> list[Head]:
        """Return the readable heads, one for each engine that left one."""
        try:
            with self._tree.folder(self._folder) as folder_fd:
                return self._heads_in(folder_fd)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def head(self, engine_id: str) -> Head | None:
        """Return the head that one engine left; ``None`` if it left none that can be read."""
        folder, name = layout.heads_folder(self._folder), layout.head_file(engine_id)
        try:
            with self._tree.folder(folder) as heads_fd:
                return self._head(folder, name, heads_fd)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _heads_in(self, folder_fd: int) -> list[Head]:
        folder = layout.heads_folder(self._folder)
        try:
            with self._tree.inner_folder(folder[-1], folder_fd) as heads_fd:
                names = (n for n in list_names(heads_fd) if n.endswith(layout.HEAD_SUFFIX))
                found = (self._head(folder, name, heads_fd) for name in names)
                return [head for head in found if head]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _head(self, folder: Folder, name: str, heads_fd: int) -> Head | None:
        unpack = partial(unpack_head, keys=self._keys)
        place = folder, name
        try:
            head = self._parsed.read(self._tree.ops, place, heads_fd, MAX_SEALED_BYTES, unpack)
        except (StoreError, OSError):
            return None  # a head is a hint
        told = (head.tenant, head.session), layout.head_file(head.engine_id)
        return head if told == (self._session, name) else None

    def _manifest(self, generation: int, folder_fd: int) -> Manifest | None:
        where = self._folder, folder_fd
        try:
            return read_manifest_at(self._tree.ops, self._keys, where, generation, self._parsed)
        except (StoreError, OSError):
            return None  # who needs to know why reads it alone
