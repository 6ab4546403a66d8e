"""The server key's file: 32 random bytes that only their owner can read."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from sessiond.domain.errors import ConfigurationError, StoreCorruptError
from sessiond.domain.keys import SERVER_KEY_BYTES
from sessiond.store.fileio import FOLDER_MODE, REAL_OPS, DurableFile, FileOps, Publish, store_errors
from sessiond.store.tree import read_file, require_private

if TYPE_CHECKING:
    from pathlib import Path


def load_server_key(path: Path, *, create: bool, ops: FileOps = REAL_OPS) -> bytes:
    """Return the server key.

    :param create: make a fresh key if there is no file; never changes one that is there.
    :raises StoreInsecureError: others than the owner can reach the file.
    :raises ConfigurationError: there is no file, or it holds no key.
    """
    with store_errors("Reading the server key"):
        with contextlib.suppress(FileNotFoundError):
            return _read(path, ops)
        if not create:
            raise ConfigurationError("There is no server key file.")
        _create(path, ops)
        return _read(path, ops)


def _read(path: Path, ops: FileOps) -> bytes:
    info = path.stat(follow_symlinks=False)
    try:
        key = read_file(ops, str(path), SERVER_KEY_BYTES)
    except StoreCorruptError as error:
        raise ConfigurationError(f"The server key cannot be used: {error.message}") from error
    require_private(info, "the server key file")
    if len(key) != SERVER_KEY_BYTES:
        raise ConfigurationError(f"The server key file must hold {SERVER_KEY_BYTES} bytes.")
    return key


def _create(path: Path, ops: FileOps) -> None:
    path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    folder_fd = ops.open(str(path.parent.resolve()), os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Of two processes that start at once, the first wins and both read its key.
        with contextlib.suppress(FileExistsError), DurableFile(ops, folder_fd) as file:
            file.write(secrets.token_bytes(SERVER_KEY_BYTES), 0)
            file.publish(folder_fd, path.name, Publish.CREATE)
    finally:
        ops.close(folder_fd)
