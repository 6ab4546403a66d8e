from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from sessiond.api import problems
from sessiond.domain import errors
from sessiond_cli.exits import MEANINGS, STATUS, ExitStatus, exit_status, exit_status_block
from sessiond_cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def _tree(root: type[errors.SessiondError]) -> Iterator[type[errors.SessiondError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def _commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def walk(command: object, path: tuple[str, ...]) -> None:
        found.append(path)
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*path, name))

    walk(typer.main.get_command(app), ())
    return found


def test_every_error_has_an_exit_status() -> None:
    ours = {kind.code for kind in _tree(errors.SessiondError) if kind.__module__ == errors.__name__}
    assert len(ours) > 30
    assert ours <= set(STATUS)


def test_every_problem_of_the_daemon_has_an_exit_status() -> None:
    assert set(problems.STATUS) <= set(STATUS)


@pytest.mark.parametrize("code", sorted(problems.STATUS))
def test_the_status_is_the_same_kind_as_the_daemons(code: str) -> None:
    """Codes that a newer daemon adds are judged by their HTTP status: it must agree with ours."""
    by_http = exit_status("a_code_of_tomorrow", problems.STATUS[code])
    assert exit_status(code) in (by_http, *_SEEN_BETTER_BY_CODE.get(by_http, ()))


#: HTTP calls all of these 500.
_SEEN_BETTER_BY_CODE = {
    ExitStatus.INTERNAL: (ExitStatus.STORE, ExitStatus.INVALID, ExitStatus.UNAVAILABLE)
}


def test_every_exit_status_has_a_meaning_and_a_use() -> None:
    assert list(MEANINGS) == list(ExitStatus)
    assert set(STATUS.values()) == set(ExitStatus) - {ExitStatus.OK}


def test_all_commands_are_there() -> None:
    assert {path for path in _commands() if path} == {
        ("list",),
        ("show",),
        ("create",),
        ("set",),
        ("suspend",),
        ("resume",),
        ("purge",),
        ("fork",),
        ("drain",),
        ("undrain",),
        ("status",),
        ("pause",),
        ("unpause",),
        ("probe",),
        ("plan",),
        ("engines",),
        ("engines", "list"),
        ("engines", "attest"),
        ("store",),
        ("store", "inspect"),
        ("store", "verify"),
    }


@pytest.mark.parametrize("path", _commands(), ids=" ".join)
def test_every_help_ends_with_the_exit_statuses(path: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, [*path, "--help"])
    assert ended.exit_code == 0
    block = exit_status_block().partition("\n")[2]
    assert [line.strip() for line in ended.stdout.rstrip().splitlines()][-len(MEANINGS) - 1 :] == [
        line.strip() for line in block.splitlines()
    ]


@pytest.mark.parametrize(
    "path",
    [path for path in _commands() if path not in ((), ("store",), ("engines",))],
    ids=" ".join,
)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    assert "--json" in CliRunner().invoke(app, [*path, "--help"]).stdout


@pytest.mark.parametrize(
    "command",
    ["list", "show", "suspend", "resume", "purge", "probe", "engines list", "engines attest"],
)
def test_what_asks_a_daemon_says_how_to_find_it(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    for part in ("--url", "SESSIOND_URL", "--token", "SESSIOND_TOKEN"):
        assert part in shown
