from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FAMILY = """
import multiprocessing, signal, sys, time
from sessiond.connector.orphans import Patience, end_with_frontend

def core(stubborn):
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_frontend(Patience(look_s=0.02, end_s=0.02, term_s=0.1))
    print(multiprocessing.current_process().pid, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    context.Process(target=core, args=(sys.argv[2] == "stubborn",)).start()
    time.sleep(600)
"""
ALONE = """
import threading
from sessiond.connector.orphans import end_with_frontend
end_with_frontend()
print(threading.active_count())
"""


@pytest.mark.parametrize("kind", ["willing", "stubborn"])
@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_a_core_ends_after_its_frontend_was_killed(tmp_path: Path, way: str, kind: str) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    command = [sys.executable, str(script), way, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as frontend:
        assert frontend.stdout is not None
        core = os.pidfd_open(int(frontend.stdout.readline()))
        try:
            assert not select.select([core], [], [], 0.3)[0]  # it lives as long as its frontend
            frontend.kill()
            assert select.select([core], [], [], 60.0)[0]
        finally:
            os.close(core)
            _end(frontend.pid)


def test_what_has_no_frontend_is_watched_by_nobody() -> None:
    found = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, check=True, text=True
    )
    assert found.stdout.strip() == "1"


def _end(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(session, signal.SIGKILL)
