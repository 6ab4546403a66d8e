from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from sessiond.store.store import Store
from sessiond.testing.files import count_steps
from sessiond.testing.snapshots import a_key_ring, write_snapshot

CHILD = """
import sys
from pathlib import Path
from sessiond.store.store import Store
from sessiond.testing.killing import Killer, arm_stores
from sessiond.testing.snapshots import a_key_ring, write_snapshot
killer = Killer(int(sys.argv[2]))
arm_stores(killer)
write_snapshot(Store.open(Path(sys.argv[1]), a_key_ring()))
print(killer.steps)
"""


def run(root: Path, at_step: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(root), str(at_step)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_dies_before_the_step_that_was_named(tmp_path: Path) -> None:
    steps = count_steps(
        lambda ops: write_snapshot(Store.open(tmp_path / "here", a_key_ring(), ops=ops))
    )
    killed = run(tmp_path / "killed", steps)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    spared = run(tmp_path / "spared", steps + 1)
    assert (spared.returncode, spared.stdout) == (0, f"{steps}\n")
