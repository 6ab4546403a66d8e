from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from sessiond.app.logs import JsonFormatter
from sessiond.app.serve import run


def record(message: str, *, with_error: bool = False) -> logging.LogRecord:
    error = None
    if with_error:
        try:
            raise ValueError("why")
        except ValueError:
            error = sys.exc_info()
    return logging.LogRecord("room", logging.WARNING, "file", 1, message, ("x",), error)


def test_a_line_is_one_json_object() -> None:
    line = json.loads(JsonFormatter().format(record("two\nlines and %s")))

    assert (line["level"], line["logger"], line["message"]) == (
        "warning",
        "room",
        "two\nlines and x",
    )
    assert "trace" not in line


def test_an_exception_is_told_with_its_trace() -> None:
    line = json.loads(JsonFormatter().format(record("failed %s", with_error=True)))

    assert "ValueError: why" in line["trace"]


def test_a_refused_start_is_told_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIOND_HOST", "0.0.0.0")

    status = run(["--json"])

    told = json.loads(capsys.readouterr().err)
    assert (status, told["code"]) == (2, "invalid_configuration")


@pytest.mark.parametrize(("level", "shown"), [("info", "INFO:     told\n"), ("warning", "")])
def test_what_the_service_tells_is_seen_without_json_too(level: str, shown: str) -> None:
    code = (
        "import logging.config\n"
        "from sessiond.app.logs import text_log_config\n"
        f"logging.config.dictConfig(text_log_config({level!r}))\n"
        "logging.getLogger('sessiond.service.endings').info('told')\n"
        "logging.getLogger('httpx').info('not ours')\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stderr == shown
