"""Which file systems a look may wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.app.filesystems import file_system_of, is_remote

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /data tmpfs rw 0 0
host:/export /data nfs4 rw 0 0
/dev/sdb1 /data/near xfs rw 0 0
agent /data/far fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "remote"),
    [
        ("/", "ext4", False),
        ("/database", "ext4", False),
        ("/data/store", "nfs4", True),
        ("/data/near/store", "xfs", False),
        ("/data/far", "fuse.sshfs", True),
    ],
)
def test_the_innermost_and_newest_mount_counts(
    tmp_path: Path, folder: str, kind: str, *, remote: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    found = file_system_of(Path(folder), mounts)
    assert (found, is_remote(found)) == (kind, remote)
