from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sessiond.app.config import Settings
from sessiond.testing.servers import free_port
from sessiond_cli import options
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Run, Scripted

_HTML = b"<html><body>It works!</body></html>"


def _problem(code: str) -> bytes:
    told = {"code": code, "detail": "It is so.", "hint": "Do this.", "retryable": False}
    return json.dumps(told).encode()


def test_the_default_url_is_where_the_daemon_listens() -> None:
    host, port = (Settings.model_fields[name].default for name in ("host", "port"))
    assert f"http://{host}:{port}" == options.DEFAULT_URL


def test_no_daemon(run: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = run("list", "--url", url)
    assert ended.exit_code == ExitStatus.UNAVAILABLE
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == [
        f"sessionctl: No daemon answers at {url}.",
        "hint: Start it with 'sessiond serve', or say where it is with --url.",
    ]


def test_no_daemon_for_a_script(run: Run) -> None:
    ended = run(
        "show", "agent-7", "--json", env={"SESSIOND_URL": f"http://127.0.0.1:{free_port()}"}
    )
    assert ended.exit_code == ExitStatus.UNAVAILABLE
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    told = json.loads(line)
    assert set(told) == {"code", "message", "hint"}
    assert told["code"] == "daemon_unreachable"


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, _HTML), (404, _HTML), (200, b"[]"), (200, b"\xff{"), (302, b""), (503, b'{"error": 1}')],
)
def test_something_else_listens_there(
    run: Run, scripted: Scripted, status: int, body: bytes
) -> None:
    scripted.status, scripted.body = status, body
    ended = run("list", "--json", "--url", scripted.url)
    assert ended.exit_code == ExitStatus.UNAVAILABLE
    assert json.loads(ended.stderr)["code"] == "not_sessiond"


def test_a_problem_document(run: Run, scripted: Scripted) -> None:
    scripted.status, scripted.body = 404, _problem("session_not_found")
    ended = run("show", "agent-7", "--url", scripted.url)
    assert ended.exit_code == ExitStatus.NOT_FOUND
    assert ended.stderr.splitlines() == ["sessionctl: It is so.", "hint: Do this."]


@pytest.mark.parametrize(
    ("http_status", "expected"),
    [
        (401, ExitStatus.UNAUTHORIZED),
        (404, ExitStatus.NOT_FOUND),
        (409, ExitStatus.CONFLICT),
        (418, ExitStatus.INTERNAL),
        (422, ExitStatus.INVALID),
        (503, ExitStatus.UNAVAILABLE),
        (507, ExitStatus.STORE),
    ],
)
def test_a_code_of_a_newer_daemon(
    run: Run, scripted: Scripted, http_status: int, expected: ExitStatus
) -> None:
    scripted.status, scripted.body = http_status, _problem("a_code_of_tomorrow")
    ended = run("list", "--json", "--url", scripted.url)
    assert ended.exit_code == expected
    assert json.loads(ended.stderr)["code"] == "a_code_of_tomorrow"


def test_an_answer_that_lacks_what_is_needed_is_no_stack(run: Run, scripted: Scripted) -> None:
    scripted.body = b'{"sessions": [{}], "next_after": null}'
    ended = run("list", "--url", scripted.url)
    assert ended.exit_code == ExitStatus.INTERNAL
    assert "Traceback" not in ended.output
    assert ended.stderr.startswith("sessionctl: KeyError")


def test_escape_sequences_of_a_daemon_do_not_reach_the_terminal(
    run: Run, scripted: Scripted
) -> None:
    scripted.status = 404
    scripted.body = json.dumps({"code": "not_found", "detail": "\x1b]0;owned\x07\x9b2J"}).encode()
    ended = run("show", "agent-7", "--url", scripted.url)
    assert not {"\x1b", "\x07", "\x9b"} & set(ended.output)


def test_the_token_comes_from_the_environment_or_the_option(run: Run, scripted: Scripted) -> None:
    scripted.body = b'{"sessions": [], "next_after": null}'
    environment = {"SESSIOND_URL": scripted.url, "SESSIOND_TOKEN": "from-environment"}
    for given in ((), ("--token", "from-option")):
        assert run("list", *given, env=environment).exit_code == 0
    assert run("list", "--url", scripted.url).exit_code == 0
    assert scripted.authorizations == ["Bearer from-environment", "Bearer from-option", None]


def test_proxies_do_not_see_the_token(
    run: Run, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.body = b'{"sessions": [], "next_after": null}'
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    assert run("list", "--url", scripted.url, "--token", "t").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("lost",),
        ("show",),
        ("store",),
        ("list", "--limit", "0"),
        ("list", "--limit", "many"),
        ("list", "--no-such-option"),
        ("list", "--url", "127.0.0.1:8600"),
        ("list", "--url", "ftp://127.0.0.1"),
        ("list", "--url", "http://[::1"),
        ("list", "--url", "http://me:secret@127.0.0.1"),
        ("list", "--token", "gré"),
        ("suspend", "agent-7", "--wait", "-1"),
        ("store", "inspect", "no/such/file"),
        ("purge",),
    ],
    ids=" ".join,
)
def test_a_command_line_that_is_not_valid(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.exit_code == ExitStatus.USAGE
    assert ended.stdout == ""
    assert ended.stderr.startswith("sessionctl: ")
    assert "secret" not in ended.stderr
    as_json = run(*arguments, "--json")
    assert as_json.exit_code == ExitStatus.USAGE
    assert json.loads(as_json.stderr)["code"] == "usage"


@pytest.mark.parametrize("session", ["../x", "a/b", "\x00", "", "x" * 300, "-x", "é"])
@pytest.mark.parametrize("command", ["show", "suspend", "resume"])
def test_malformed_ids_are_refused_before_anything_is_asked(
    run: Run, scripted: Scripted, command: str, session: str
) -> None:
    ended = run(command, "--json", "--url", scripted.url, "--", session)
    assert ended.exit_code == ExitStatus.INVALID
    assert json.loads(ended.stderr)["code"] == "invalid_session_id"
    assert scripted.authorizations == []


def test_version(run: Run) -> None:
    ended = run("--version")
    assert ended.exit_code == 0
    assert ended.stdout.startswith("sessionctl 0.")


def test_a_reader_that_has_seen_enough(scripted: Scripted) -> None:
    """``sessionctl list | head -1`` must not end in a stack."""
    scripted.body = b'{"sessions": [], "next_after": null}'
    command = [sys.executable, "-m", "sessiond_cli.main", "list", "--json", "--url", scripted.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == ExitStatus.INTERNAL
