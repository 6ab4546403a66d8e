"""One minute of the soak: agents, an engine and a daemon that are killed, every token checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone
LIMIT_S = 500


def test_a_minute_of_everything_at_once(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sessiond.app.main", "bench", "soak", "--json"]
    places = ["--folder", str(tmp_path), "--models", str(model.parent)]
    ended = subprocess.run(
        [*command, *places, "--minutes", "1", "--agents", "6"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert ended.stdout, ended.stderr
    report = json.loads(ended.stdout)
    found = [report[name] for name in ("wrong", "drifted", "lost", "leaked")]
    assert (ended.returncode, found) == (0, [[], [], [], []]), ended.stderr
    counts = ("wrong_tokens", "wrong_logprobs", "lost_sessions", "leaks")
    assert [report[name] for name in counts] == [0, 0, 0, 0]
    # Every agent tried everything; whether a fork finds a snapshot depends on when it comes.
    assert (report["engine_kills"], report["daemon_kills"]) == (1, 1)
    did = ("turns", "suspends", "resumes", "deletes")
    assert all(report[name] > 0 for name in did), report
    assert report["compared_tokens"] >= report["turns"]
    assert not [refused for refused in report["refused"] if "internal_error" in refused]
    assert list(tmp_path.iterdir()) == []
