from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from sessiond.testing.served import ServedWorld, served_world
from sessiond_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Result]
Ask = Callable[..., Any]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedWorld]:
    with served_world(tmp_path) as served:
        yield served


@pytest.fixture
def run(served: ServedWorld) -> Run:
    """Run a command line against the served world."""
    environment = {"SESSIOND_URL": served.url, "SESSIOND_TOKEN": None, "SESSIOND_KEY_FILE": None}
    runner = CliRunner(env=environment)

    def invoke(*arguments: str) -> Result:
        return runner.invoke(app, arguments)

    return invoke


@pytest.fixture
def ask(run: Run) -> Ask:
    """Run a command that succeeds with ``--json`` and return its answer."""

    def invoke(*arguments: str) -> object:
        ended = run(*arguments, "--json")
        assert (ended.exit_code, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    return invoke
