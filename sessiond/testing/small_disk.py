"""A real file system that is really full: a program on a small disk of its own.

The disk is mounted in a mount namespace that only the program sees, so nothing is left behind,
however it ends. Root may do that, and mostly users too, in a user namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("tmpfs", "ext4")
_TIMEOUT_S = 120.0
_MOUNT = {
    "tmpfs": 'mount -t tmpfs -o "size=$1,mode=700" none "$2"',
    "ext4": 'truncate -s "$1" "$2.img" && mkfs.ext4 -q -F "$2.img" && '
    'mount -o loop "$2.img" "$2" && rm "$2.img"',
}
_RUN = "import runpy, sys; from pathlib import Path; a = sys.argv; "
_RUN += "runpy.run_path(a[1])[a[2]](Path(a[3]))"


def refusal(kind: str, folder: Path) -> str:
    """Return why this machine cannot mount such a disk at *folder*; empty if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare command"
    ended = _in_namespace(kind, 16 << 20, folder, ["true"])
    return "" if ended.returncode == 0 else f"mounting is not allowed here: {ended.stderr.strip()}"


def run(kind: str, size_bytes: int, folder: Path, program: Path, function: str) -> None:
    """Call ``function(folder)`` of a Python file in a process that sees a disk at *folder*.

    :raises AssertionError: it failed; what it printed is the message.
    """
    command = [sys.executable, "-c", _RUN, str(program), function, str(folder)]
    ended = _in_namespace(kind, size_bytes, folder, command)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def fill(folder: Path, leave_bytes: int) -> None:
    """Take all room of the disk at *folder* but *leave_bytes*."""
    found = os.statvfs(folder)
    with (folder / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave_bytes)


def _in_namespace(
    kind: str, size_bytes: int, folder: Path, command: list[str]
) -> subprocess.CompletedProcess[str]:
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = f'{_MOUNT[kind]} && shift 2 && exec "$@"'
    return subprocess.run(  # noqa: S603 - a test's own program
        [
            *("unshare", "--mount", *as_root, "--"),
            *("sh", "-c", script, "sh", str(size_bytes), str(folder), *command),
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
