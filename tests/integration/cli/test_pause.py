"""``pause``, ``unpause`` and ``status`` against the real API."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sessiond.api.models_sweeps import PauseOut, UnpauseOut
from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.testing.served import ServedWorld, served_world
from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus
from sessiond_cli.main import app
from sessiond_cli.pauses import pause_words

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Ask, Run


def words(run: Run, *arguments: str) -> str:
    ended = run(*arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return " ".join(ended.stdout.split())


def test_pause_and_unpause(served: ServedWorld, run: Run, ask: Ask) -> None:
    served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    served.world.pass_time(301)
    assert "sweeps on" in words(run, "status")
    assert words(run, "pause") == "The sweeps are paused by 'default'."
    assert served.run(served.world.services.sweeper.sweep).paused
    assert "sweeps paused by 'default'" in words(run, "status")
    assert ask("suspend", AGENT)["snapshot"]["generation"] == 1  # what is asked for is done
    assert words(run, "unpause") == "The sweeps run again."
    assert words(run, "unpause") == "The sweeps were not paused."
    assert not served.run(served.world.services.sweeper.sweep).paused


def test_what_scripts_read(run: Run, ask: Ask) -> None:
    before_unix_s = time.time()
    paused = PauseOut.model_validate(ask("pause", "--reason", "a backup", "--for", "3600"))
    assert paused.reason == "a backup"
    assert paused.until_unix_s is not None
    assert before_unix_s + 3600 <= paused.until_unix_s <= time.time() + 3600
    found = ask("status")
    assert (found["status"], found["live_engines"], found["sweeps_paused"]) == ("ready", 0, True)
    assert found["sweeps"]["paused"] == paused.model_dump()
    assert "for 60 min: a backup" in words(run, "status")
    assert UnpauseOut.model_validate(ask("unpause")).was_paused
    assert ask("status")["sweeps"]["paused"] is None


@pytest.mark.parametrize(
    "arguments", [("pause", "--for", "0"), ("pause", "--for", "long"), ("pause", "now")]
)
def test_a_pause_that_cannot_be(run: Run, ask: Ask, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == ExitStatus.USAGE
    assert not ask("status")["sweeps_paused"]


def test_who_is_no_operator_sees_that_it_is_paused(tmp_path: Path) -> None:
    tokens = {"alpha-token-0123456789": TenantId("alpha")}
    with served_world(tmp_path, tokens) as served:
        served.run(served.world.services.pauses.pause, DEFAULT_TENANT, "secret", None)
        environment = {"SESSIOND_URL": served.url, "SESSIOND_TOKEN": "alpha-token-0123456789"}
        runner = CliRunner(env=environment)
        found = json.loads(runner.invoke(app, ["status", "--json"]).stdout)
        assert (found["sweeps_paused"], found["sweeps"]) == (True, None)
        shown = runner.invoke(app, ["status"]).stdout.split()
        assert shown[-2:] == ["sweeps", "paused"]
        assert runner.invoke(app, ["pause"]).exit_code == ExitStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    ("reason", "until_unix_s", "shown"),
    [
        ("", None, "paused by 'ops'"),
        ("a backup", None, "paused by 'ops': a backup"),
        ("", 1090.0, "paused by 'ops' for 90 s"),
        ("", 999.0, "paused by 'ops' for 0.00 s"),
    ],
)
def test_words(reason: str, until_unix_s: float | None, shown: str) -> None:
    pause = {"by": "ops", "reason": reason, "until_unix_s": until_unix_s}
    assert pause_words(pause, 1000.0) == shown
