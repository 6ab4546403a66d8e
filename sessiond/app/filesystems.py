"""Kinds of file systems, by who is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "ceph", "lustre", "gluster")
_MOUNTS: Final = Path("/proc/mounts")


def file_system_of(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Return the kind of file system that *folder* lies on."""
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines():
        _, mount, found, *_ = line.split()
        inside = folder.is_relative_to(mount)
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def is_remote(kind: str) -> bool:
    """Whether a read may wait for the network, or for another process."""
    return kind.startswith(_REMOTE)
