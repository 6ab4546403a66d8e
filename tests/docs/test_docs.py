"""Documents cannot rot: what they must name is taken from the code."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from sessiond import __version__
from sessiond.api.metrics import Metrics
from sessiond.app.config import ENV_PREFIX, FILE_VARIABLE, Settings
from sessiond.app.main import COMMANDS
from sessiond.app.paths import default_store_root
from sessiond.domain.architectures import KV_KINDS, Support
from sessiond.domain.reasons import Reason
from sessiond.testing import reference
from sessiond_cli.exits import STATUS, ExitStatus

_ROOT = Path(__file__).parents[2]
_HOW = "run: python -m sessiond.testing.reference > REFERENCE.md"
#: Of the text that www.apache.org publishes.
_APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


@pytest.fixture(scope="module")
def words() -> str:
    """Return everything that a user reads."""
    return "\n".join((_ROOT / name).read_text() for name in ("README.md", "REFERENCE.md"))


def test_the_reference_is_what_the_code_says() -> None:
    assert (_ROOT / "REFERENCE.md").read_text() == reference.render(), _HOW


def test_every_setting_is_documented(words: str) -> None:
    for name, field in Settings.model_fields.items():
        assert f"`{ENV_PREFIX}{name.upper()}`" in words
        assert field.description, name
    assert FILE_VARIABLE in words


def test_every_error_code_is_documented(words: str) -> None:
    for code in {kind.code for kind in reference.error_classes()} | set(STATUS):
        assert f"| `{code}` |" in words


def test_every_reason_is_documented(words: str) -> None:
    for reason in Reason:
        assert f"| `{reason.value}` |" in words


def test_the_readme_names_models_of_every_supported_kind() -> None:
    readme = (_ROOT / "README.md").read_text()
    for known in KV_KINDS:
        if known.support is Support.GOLDEN and "(" not in known.kind:
            models = known.what.partition("(")[2].rstrip(")").split(", ")
            assert any(model in readme for model in models), known.kind


def test_every_exit_status_is_documented(words: str) -> None:
    for status in ExitStatus:
        assert f"| {status.value} |" in words


def test_every_command_is_documented(words: str) -> None:
    for name in COMMANDS:
        assert f"sessiond {name}" in words
    commands = [name for name, _ in reference.commands()]
    assert len(commands) >= 6
    for command in commands:
        assert command.partition(" [")[0] in words


def test_every_route_is_documented_and_says_what_it_does(words: str) -> None:
    routes = reference.routes()
    assert len(routes) >= 18
    for method, path, summary in routes:
        assert f"`{method} {path}`" in words
        assert summary.endswith("."), path


def test_every_metric_is_documented(words: str) -> None:
    names = re.findall(r"^# HELP (\w+)", Metrics().exposition(0).decode(), re.MULTILINE)
    assert names
    for name in names:
        assert f"`{name}`" in words


def test_the_default_store_root_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SESSIOND_STORE_ROOT", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    told = re.search(r"`SESSIOND_STORE_ROOT` \| path \| `([^`]+)`", reference.render())
    assert told
    assert Path(told[1]).expanduser() == default_store_root()


def test_the_licence_is_the_unchanged_apache_2_0() -> None:
    assert hashlib.sha256((_ROOT / "LICENSE").read_bytes()).hexdigest() == _APACHE_2_SHA256
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])


def test_the_changelog_begins_with_this_version_and_with_what_hurts() -> None:
    titles = re.findall(r"^#{2,3} (.+)$", (_ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0].split()[0] == __version__
    assert titles[1] == "Damage and upgrades"


def test_no_document_names_a_file_that_is_not_there() -> None:
    for name in ("README.md", "REFERENCE.md", "CHANGELOG.md"):
        text = (_ROOT / name).read_text()
        for linked in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (_ROOT / linked).exists(), f"{name}: {linked}"
