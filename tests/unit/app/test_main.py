from __future__ import annotations

import subprocess
import sys

import pytest

from sessiond import __version__
from sessiond.app.main import main

#: Not installed where only the bare package is.
_SERVER_PACKAGES = (
    "fastapi",
    "pydantic",
    "sqlalchemy",
    "uvicorn",
    "httpx",
    "apscheduler",
    "rich",
    "typer",
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == f"sessiond {__version__}"


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_without_a_command_it_says_which_there_are(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_options_belong_to_the_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    assert "SESSIOND_HOST" in capsys.readouterr().out


def test_the_bare_package_is_enough_for_the_engine() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in _SERVER_PACKAGES)
    ended = python(
        f"import sys; {blocked}; from sessiond.app.main import main; "
        "sys.exit(main(['engine', '--help']))"
    )
    assert ended.returncode == 0, ended.stderr
    assert "--ram-tier-bytes" in ended.stdout


def test_a_missing_package_names_the_extra_to_install() -> None:
    ended = python(
        "import sys; sys.modules['uvicorn'] = None; from sessiond.app.main import main; "
        "sys.exit(main(['serve']))"
    )
    assert ended.returncode == 2
    assert "sessiond[server]" in ended.stderr


def test_serve_refuses_to_listen_without_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SESSIOND_TOKENS", raising=False)
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "SESSIOND_TOKENS" in capsys.readouterr().err
