from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.app.main import main


def test_it_shows_its_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "store" in shown
    assert "interference" in shown
    assert "resume" in shown


def test_options_that_cannot_be_used_are_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "bench"
    status = main(["bench", "interference", "--folder", str(folder), "--context-tokens", "1"])
    assert status == 2
    assert "context" in capsys.readouterr().err
    assert not folder.exists()
