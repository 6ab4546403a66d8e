from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sessiond.testing.identity_report import REPORT_VARIABLE, IdentityReport


def test_runs_add_to_one_report(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    IdentityReport(path).field(
        "dtype", outcome="recomputed", reason="wrong", output_matches_fresh_engine=False
    )

    second = IdentityReport(path)
    second.field(
        "dtype",
        outcome="recomputed",
        reason="model_dtype_mismatch",
        output_matches_fresh_engine=True,
    )
    second.architecture("FullAttentionSpec", "golden")
    second.version("0.32.0", passed=True)

    assert json.loads(path.read_text()) == {
        "fields": {
            "dtype": {
                "outcome": "recomputed",
                "reason": "model_dtype_mismatch",
                "output_matches_fresh_engine": True,
            }
        },
        "architectures": {"FullAttentionSpec": "golden"},
        "versions": {"0.32.0": True},
    }
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    monkeypatch.delenv(REPORT_VARIABLE, raising=False)
    IdentityReport.from_environment().architecture("MambaSpec", "refused")
    assert list(tmp_path.iterdir()) == []

    monkeypatch.setenv(REPORT_VARIABLE, str(path))
    IdentityReport.from_environment().architecture("MambaSpec", "refused")
    assert json.loads(path.read_text())["architectures"] == {"MambaSpec": "refused"}


def test_what_is_withdrawn_was_told_by_this_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    IdentityReport(path).architecture("FullAttentionSpec", "golden")
    failed = IdentityReport(path)
    failed.field("dtype", outcome="restored", reason="", output_matches_fresh_engine=True)

    failed.withdraw()

    told = json.loads(path.read_text())
    assert (told["fields"], told["architectures"]) == ({}, {"FullAttentionSpec": "golden"})


TWO_TESTS = """
def test_that_holds(report):
    report.architecture("holds", "golden")


def test_that_fails(report):
    report.architecture("fails", "golden")
    assert False
"""


def test_nothing_stays_of_an_identity_test_that_fails(
    tmp_path: Path,
) -> None:
    conftest = Path(__file__).parents[2] / "engine" / "identity" / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text())
    (tmp_path / "test_two.py").write_text(TWO_TESTS)
    path = tmp_path / "report.json"
    command = (sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path))
    env = {**os.environ, REPORT_VARIABLE: str(path)}

    ended = subprocess.run(command, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False)

    assert ended.returncode == pytest.ExitCode.TESTS_FAILED
    told = json.loads(path.read_text())
    assert told["architectures"] == {"holds": "golden"}
    assert list(told["versions"].values()) == [False]
