from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessiond.testing.vllm_versions import main


def make_environment(folder: Path, version: str, status: int) -> str:
    """Make an environment whose Python knows a version and ends all tests alike."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit 0\n'
        f'echo "$SESSIOND_OTHER_PYTHONS $*" >> {folder}/seen\nexit {status}\n'
    )
    python.chmod(0o700)
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


def test_it_ends_well_if_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert main([make_environment(tmp_path / "good", "0.32.0", status=0)]) == 0
