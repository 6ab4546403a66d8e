"""Taking damaged files out of the way, with a note why. Nothing is ever deleted for damage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sessiond.domain.canonical import canonical_json
from sessiond.domain.ids import new_hex_id
from sessiond.store import layout
from sessiond.store.fileio import Publish

if TYPE_CHECKING:
    from sessiond.store.layout import Folder
    from sessiond.store.tree import Tree


def quarantine(tree: Tree, parts: Folder, name: str, why: str) -> str:
    """Move a file, or whatever lies under its name, to ``quarantine/``; returns its new name.

    :raises FileNotFoundError: there is nothing under that name.
    """
    new_name = f"{new_hex_id()}-{name}"
    note = canonical_json({"from": [*parts, name], "why": why, "at_unix_s": int(time.time())})
    # The note first: a file in quarantine always has one.
    tree.write(layout.QUARANTINE, f"{new_name}{layout.NOTE_SUFFIX}", note, Publish.CREATE)
    try:
        tree.move(parts, name, layout.QUARANTINE, new_name)
    except FileNotFoundError:
        tree.unlink(layout.QUARANTINE, f"{new_name}{layout.NOTE_SUFFIX}")
        raise
    return new_name
