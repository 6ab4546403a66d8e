from __future__ import annotations

import json
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
