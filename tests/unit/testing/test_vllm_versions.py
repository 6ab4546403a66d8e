from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessiond.testing.vllm_versions import main


def finding(outcome: str, reason: str = "", *, matches: bool = True) -> dict[str, object]:
    return {"outcome": outcome, "reason": reason, "output_matches_fresh_engine": matches}


def make_environment(
    folder: Path, version: str, status: int, found: dict[str, object] | None = None
) -> str:
    """Make an environment whose Python knows a version, ends all tests alike and reports that."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit 0\n'
        f'echo "$SESSIOND_OTHER_PYTHONS $*" >> {folder}/seen\n'
        'mkdir -p "$(dirname "$SESSIOND_IDENTITY_REPORT")"\n'
        f'cp {folder}/found "$SESSIOND_IDENTITY_REPORT"\nexit {status}\n'
    )
    python.chmod(0o700)
    (folder / "found").write_text(json.dumps(found or {}))
    return str(folder)


def test_each_version_is_tried_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = make_environment(tmp_path / "bad", "0.31.0", status=1)
    good = make_environment(tmp_path / "good", "0.32.0", status=0)

    assert main([bad, good]) == 1

    report = json.loads((tmp_path / ".identity" / "report.json").read_text())
    assert report["versions"] == {"0.31.0": False, "0.32.0": True}
    assert (tmp_path / "good" / "seen").read_text().startswith(f"{bad}/bin/python -m pytest")


def test_the_report_has_what_all_versions_found_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {
        "0.31.0": {
            "fields": {
                "rope": finding("recomputed", "rope_mismatch"),
                "seed": finding("restored"),
                "dtype": finding("recomputed", "dtype_mismatch", matches=False),
            },
            "architectures": {"full": "golden", "linear": "golden", "gone": "golden"},
        },
        "0.32.0": {
            "fields": {
                "rope": finding("recomputed", "rope_mismatch"),
                "seed": finding("recomputed", "hash_mismatch"),
                "dtype": finding("recomputed", "dtype_mismatch"),
                "new": finding("restored"),
            },
            "architectures": {"full": "golden", "linear": "refused", "new": "refused"},
        },
    }
    environments = [
        make_environment(tmp_path / version, version, status=0, found=told)
        for version, told in found.items()
    ]

    main(environments)

    report = json.loads((tmp_path / ".identity" / "report.json").read_text())
    assert report["architectures"] == {"full": "golden", "linear": "refused", "new": "refused"}
    assert report["fields"] == {
        "rope": finding("recomputed", "rope_mismatch"),
        "seed": finding(
            "restored with 0.31.0; recomputed with 0.32.0",
            "none with 0.31.0; hash_mismatch with 0.32.0",
        ),
        "dtype": finding("recomputed", "dtype_mismatch", matches=False),
        "new": finding("not proved with 0.31.0; restored with 0.32.0", matches=False),
    }
    assert report["versions"] == {"0.31.0": True, "0.32.0": True}


def test_what_an_earlier_run_found_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main([make_environment(tmp_path / "a", "0.31.0", 0, {"fields": {"old": finding("restored")}})])
    main([make_environment(tmp_path / "b", "0.32.0", 0, {"fields": {"dtype": finding("warm")}})])

    report = json.loads((tmp_path / ".identity" / "report.json").read_text())
    assert report["fields"] == {"dtype": finding("warm")}
    assert report["versions"] == {"0.32.0": True}


def test_it_ends_well_if_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert main([make_environment(tmp_path / "good", "0.32.0", status=0)]) == 0
