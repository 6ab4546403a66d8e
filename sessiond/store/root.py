"""Making and checking a store root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import (
    StoreCorruptError,
    StoreError,
    StoreInsecureError,
    StoreKeyError,
    StoreVersionError,
)
from sessiond.store import layout
from sessiond.store.fields import Fields
from sessiond.store.fileio import FOLDER_MODE, FileOps, Publish
from sessiond.store.sealed import parse_json_object
from sessiond.store.tree import Tree, require_private

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.domain.keys import KeyRing

STORE_VERSION = 1
_STORE_NAME = "sessiond store"
_MAX_FORMAT_BYTES = 4096


def open_root(root: Path, keys: KeyRing, *, create: bool, ops: FileOps) -> Tree:
    """Return the tree of a store root, after everything about it was checked.

    :param create: make what is missing.
    :raises StoreInsecureError: others than the owner can reach it.
    :raises StoreVersionError: its FORMAT is of another version, or missing beside data.
    :raises StoreKeyError: it was made with another server key.
    :raises StoreError: there is no store, and *create* is false.
    """
    if create:
        root.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    elif not root.is_dir():
        raise StoreError("There is no store at this root.")
    # The operator may have linked the root elsewhere; below it no symlink is followed.
    tree = Tree(root.resolve(), ops)
    _require_private_folder(tree, layout.ROOT, "the store root")
    if layout.FORMAT_FILE not in tree.names(layout.ROOT):
        _begin(tree, keys, create=create)
    _check_format(tree.read(layout.ROOT, layout.FORMAT_FILE, _MAX_FORMAT_BYTES), keys)
    for parts in layout.TOP_FOLDERS:
        _require_private_folder(tree, parts, f"{parts[0]}/", create=create)
    return tree


def read_format(data: bytes) -> dict[str, str | int]:
    """Read the FORMAT file.

    :raises StoreCorruptError: it is none.
    """
    fields = Fields(parse_json_object(data))
    if fields.text("format") != _STORE_NAME:
        raise StoreCorruptError("The FORMAT file is not that of a sessiond store.")
    return {"version": fields.count("version"), "key_id": fields.text("key_id")}


def _begin(tree: Tree, keys: KeyRing, *, create: bool) -> None:
    """Write FORMAT, before any data."""
    if tree.names(layout.SESSIONS) or tree.names(layout.SEGMENTS):
        raise StoreVersionError("The store root holds data but no FORMAT file.")
    if not create:
        raise StoreError("There is no store at this root.")
    with tree.folder(layout.TMP, create=True):
        pass
    values: dict[str, JsonValue] = {
        "format": _STORE_NAME,
        "version": STORE_VERSION,
        "key_id": keys.key_id.hex(),
    }
    data = canonical_json(values) + b"\n"
    try:
        tree.write(layout.ROOT, layout.FORMAT_FILE, data, Publish.CREATE)
    except FileExistsError:
        return  # another process was quicker; its file is checked like any other


def _check_format(data: bytes, keys: KeyRing) -> None:
    found = read_format(data)
    if found["version"] != STORE_VERSION:
        raise StoreVersionError(
            f"The store has version {found['version']}; this sessiond knows {STORE_VERSION}."
        )
    if found["key_id"] != keys.key_id.hex():
        raise StoreKeyError("The store was made with another server key.")


def _require_private_folder(
    tree: Tree, parts: layout.Folder, what: str, *, create: bool = False
) -> None:
    try:
        with tree.folder(parts, create=create) as fd:
            require_private(os.fstat(fd), what)
    except NotADirectoryError as error:
        raise StoreInsecureError(f"{what} is not a folder, or is a symlink.") from error
