"""How much room the file system of a store has, and how much of it is to stay free."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from sessiond.domain.retention import floor_bytes

if TYPE_CHECKING:
    from sessiond.store.fileio import FileOps, Space
    from sessiond.store.tree import Tree


def space_of(tree: Tree) -> Space:
    """Return the room of the store's file system."""
    with tree.folder(()) as fd:
        return tree.ops.space(fd)


def require_room(ops: FileOps, fd: int, size_bytes: int, floor: int | None) -> None:
    """Refuse to take *size_bytes* more if less than the floor would then be free.

    :param floor: bytes, or ``None`` for the default.
    :raises OSError: ``ENOSPC``, as the file system itself would answer a little later.
    """
    free_bytes, total_bytes = ops.space(fd)
    if free_bytes - size_bytes < floor_bytes(floor, total_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
