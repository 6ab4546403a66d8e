"""What the daemon and the engine's launcher must agree about. Standard library only: the engine's
launcher runs where nothing but the bare package is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "SESSIOND_STORE_ROOT"
KEY_FILE_VARIABLE = "SESSIOND_KEY_FILE"
FLOOR_VARIABLE = "SESSIOND_FREE_SPACE_FLOOR_BYTES"


def default_store_root() -> Path:
    """Return the store root: ``SESSIOND_STORE_ROOT`` or a folder in the user's data folder."""
    given = os.environ.get(ROOT_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "sessiond" / "store"


def default_key_file(store_root: Path) -> Path:
    """Return the key file: ``SESSIOND_KEY_FILE`` or ``server.key`` beside the store root."""
    given = os.environ.get(KEY_FILE_VARIABLE)
    return Path(given).expanduser().absolute() if given else store_root.parent / "server.key"


def free_space_floor_bytes() -> int | None:
    """Return ``SESSIOND_FREE_SPACE_FLOOR_BYTES``; ``None`` where it is not set.

    :raises ValueError: it is no number of bytes.
    """
    given = os.environ.get(FLOOR_VARIABLE)
    floor_bytes = int(given) if given else None
    if floor_bytes is not None and floor_bytes < 0:
        raise ValueError("a floor cannot be negative")
    return floor_bytes
