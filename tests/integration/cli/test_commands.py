"""Every command against the real API, over HTTP, with a real store and a real registry."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sessiond.api.models import PurgeOut, ResumeOut, SessionOut, SuspendOut
from sessiond.domain.heads import LastTurn, pass_turn
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.reasons import Cause, Reason
from sessiond.testing.served import ServedWorld, served_world
from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus
from sessiond_cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.testing.fake_engine import FakeEngine
    from tests.integration.cli.conftest import Ask, Run


def _create(served: ServedWorld, *names: str, pinned: bool = False) -> None:
    for name in names:
        served.run(partial(served.world.create, SessionId(name), pinned=pinned))


@pytest.fixture
def engine(served: ServedWorld) -> FakeEngine:
    """Return an engine in which the agent has taken a turn."""
    started = served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    return started


def _code(run: Run, *arguments: str) -> tuple[int, str]:
    ended = run(*arguments, "--json")
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return ended.exit_code, json.loads(line)["code"]


def _words(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_no_sessions(run: Run, ask: Ask) -> None:
    assert ask("list") == {"sessions": [], "next_after": None}
    assert run("list").stdout == "No sessions.\n"


def test_list_pages_and_filters(served: ServedWorld, run: Run, ask: Ask) -> None:
    _create(served, "a", "b", "c")
    _create(served, "p", pinned=True)

    def ids(*arguments: str) -> list[str]:
        return [session["session_id"] for session in ask("list", *arguments)["sessions"]]

    assert ids() == ["a", "b", "c", "p"]
    assert ids("--pinned") == ["p"]
    assert ids("--not-pinned") == ["a", "b", "c"]
    assert ids("--has-snapshot") == []
    assert ids("--no-snapshot", "--model", "another") == []
    assert ids("--limit", "2") == ["a", "b"]
    assert ask("list", "--limit", "2")["next_after"] == "b"
    assert ids("--after", "b") == ["c", "p"]
    assert "There are more: --after b" in run("list", "--limit", "2").stdout


def test_a_list_longer_than_a_page(
    served: ServedWorld, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond_cli.commands.list._PAGE", 2)
    _create(served, "a", "b", "c", "d", "e")
    assert [session["session_id"] for session in ask("list")["sessions"]] == list("abcde")
    assert ask("list", "--limit", "3")["next_after"] == "c"


def test_the_story_of_a_session(
    served: ServedWorld, engine: FakeEngine, run: Run, ask: Ask
) -> None:
    suspended = ask("suspend", AGENT)
    assert SuspendOut.model_validate(suspended).snapshot.tokens_restorable == 96

    shown = ask("show", AGENT)
    assert SessionOut.model_validate(shown).state == "suspended"
    assert [snapshot["generation"] for snapshot in shown["snapshots"]] == [1]

    served.world.kill_engine(engine)
    assert _code(run, "resume", AGENT) == (ExitStatus.UNAVAILABLE, "no_engine")
    served.world.start_engine()
    resumed = ask("resume", AGENT)
    assert ResumeOut.model_validate(resumed).outcome == "restored"
    assert resumed["disk_tokens"] == 96

    assert PurgeOut.model_validate(ask("purge", "--yes")).deleted == 1
    assert _code(run, "show", AGENT) == (ExitStatus.NOT_FOUND, "session_not_found")


@pytest.mark.usefixtures("engine")
def test_the_same_for_people(served: ServedWorld, run: Run) -> None:
    ended = run("suspend", AGENT)
    assert (ended.exit_code, ended.stderr) == (0, "")
    rows = _words(ended.stdout)
    assert ["suspended", AGENT] in rows
    assert ["tokens", "96", "of", "108"] in rows

    again = _words(run("suspend", AGENT).stdout)
    assert ["written", "nothing:", "all", "was", "there", "already"] in again

    (row,) = [row for row in _words(run("list").stdout) if row and row[0] == AGENT]
    assert row[1] == "suspended"
    assert "96" in row

    served.world.kill_engine(served.world.started[0])
    served.world.start_engine()
    rows = _words(run("resume", AGENT).stdout)
    assert ["outcome", "restored"] in rows
    assert ["tokens", "96", "of", "108,", "96", "from", "disk"] in rows

    rows = _words(run("show", AGENT).stdout)
    assert ["last", "resume", "restored"] in rows
    assert ["state", "active"] in rows
    assert all(row[:2] != ["last", "turn"] for row in rows)  # its engine is gone
    assert any(row[:1] == ["1"] and "96" in row for row in rows)


@pytest.mark.usefixtures("engine")
def test_show_tells_where_the_newest_turn_took_its_tokens_from(
    served: ServedWorld, run: Run
) -> None:
    def told() -> list[str]:
        rows = _words(run("show", AGENT).stdout)
        return [" ".join(row) for row in rows if row[0] in ("last", "diverged")]

    assert told() == ["last turn 100 tokens: 0 VRAM, 0 RAM, 0 disk, 100 computed"]
    served.run(served.world.turn, AGENT, text(40) + text(60, seed=2))
    assert told() == [
        "last turn 100 tokens: 32 VRAM, 0 RAM, 0 disk, 68 computed",
        "diverged at token 40 of 108 known",
    ]


def test_show_claims_nothing_of_a_turn_that_was_not_kept(
    served: ServedWorld, engine: FakeEngine, run: Run
) -> None:
    (head,) = served.world.store.read_heads(DEFAULT_TENANT, AGENT)
    turn = LastTurn(served.world.services.context.now(), None, causes=(Cause(Reason.NOT_TEXT),))
    engine.write_head(pass_turn(head, turn))
    rows = [" ".join(row) for row in _words(run("show", AGENT).stdout)]
    assert "last turn not known: it was not kept" in rows


def test_engines_tell_whether_they_keep_replies(
    served: ServedWorld, engine: FakeEngine, run: Run
) -> None:
    assert "(prompts only)" not in run("engines", "list").stdout
    served.run(partial(_update, engine, keeps_replies=False))
    assert "(prompts only)" in " ".join(run("engines", "list").stdout.split())


async def _update(engine: FakeEngine, *, keeps_replies: bool) -> None:
    engine.update(keeps_replies=keeps_replies)


@pytest.mark.usefixtures("engine")
def test_a_resume_that_may_not_load_says_why(served: ServedWorld, run: Run, ask: Ask) -> None:
    ask("suspend", AGENT)
    served.world.kill_engine(served.world.started[0])
    served.world.start_engine(fields={"weights_digest": "f" * 64})
    ended = run("resume", AGENT)
    assert ended.exit_code == 0
    assert ["outcome", "recomputed"] in _words(ended.stdout)
    assert "weights_mismatch: The model's weights are not the ones" in ended.stdout
    assert "hint: " in ended.stdout
    told = ask("resume", AGENT)
    assert (told["outcome"], told["reason"]) == ("recomputed", "weights_mismatch")


@pytest.mark.usefixtures("engine")
def test_no_colour_and_no_broken_lines_without_a_terminal(run: Run, ask: Ask) -> None:
    ask("suspend", AGENT)
    for arguments in (("list",), ("show", AGENT), ("suspend", AGENT), ("resume", AGENT)):
        ended = run(*arguments)
        assert "\x1b" not in ended.output
        assert "…" not in ended.stdout
        assert max(len(line) for line in ended.stdout.splitlines()) < 200


def test_a_suspend_during_a_turn(engine: FakeEngine, run: Run) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    assert _code(run, "suspend", AGENT) == (ExitStatus.CONFLICT, "turn_in_flight")
    ended = run("suspend", AGENT)
    assert ended.stderr.splitlines()[1] == "hint: Wait for the turn to end, then suspend."


def test_a_suspend_of_nothing(served: ServedWorld, run: Run) -> None:
    served.world.start_engine()
    _create(served, AGENT)
    assert _code(run, "suspend", AGENT) == (ExitStatus.INVALID, "nothing_to_suspend")


@pytest.mark.parametrize("command", ["show", "suspend", "resume"])
def test_an_unknown_session(run: Run, command: str) -> None:
    assert _code(run, command, "nobody") == (ExitStatus.NOT_FOUND, "session_not_found")


@pytest.fixture
def slow_resume(served: ServedWorld, engine: FakeEngine, ask: Ask) -> None:
    """Let the next resume last until its deadline of two seconds."""
    ask("suspend", AGENT)
    served.world.kill_engine(engine)
    served.world.start_engine().faults.hangs = {"resume"}


@pytest.mark.usefixtures("slow_resume")
def test_a_long_call_is_followed_over_many_rounds(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond_cli.longcalls._ROUND_S", 0.1)
    told = ask("resume", AGENT)
    assert (told["outcome"], told["reason"]) == ("recomputed", "deadline")
    assert told["seconds"] > 1


@pytest.mark.usefixtures("slow_resume")
@pytest.mark.parametrize("wait_s", ["0", "0.3"])
def test_a_long_call_that_is_not_waited_for(run: Run, ask: Ask, wait_s: str) -> None:
    told = ask("resume", AGENT, "--wait", wait_s)
    assert (told["status"], told["kind"]) == ("running", "resume")
    # It is joined, not begun again.
    ended = run("resume", AGENT, "--wait", wait_s)
    assert ended.exit_code == 0
    assert ended.stdout.startswith(f"{told['operation_id']} goes on")
    assert _code(run, "suspend", AGENT)[0] == ExitStatus.CONFLICT


def test_purge_asks_or_refuses(served: ServedWorld, run: Run, ask: Ask) -> None:
    _create(served, "a", "b")
    assert _code(run, "purge") == (ExitStatus.USAGE, "usage")
    found = ask("purge", "--dry-run")
    assert (found["matched"], found["deleted"], found["session_ids"]) == (2, 0, ["a", "b"])
    assert run("purge", "--dry-run").stdout.splitlines() == ["Matching sessions: 2", "  a", "  b"]
    assert len(ask("list")["sessions"]) == 2


def test_purge_deletes_what_matches(served: ServedWorld, run: Run, ask: Ask) -> None:
    _create(served, "a", "b")
    _create(served, "p", pinned=True)
    assert ask("purge", "--yes", "--has-snapshot")["matched"] == 0
    assert run("purge", "--yes").stdout == "Deleted sessions: 2 of 2\n"
    assert [session["session_id"] for session in ask("list")["sessions"]] == ["p"]
    assert ask("purge", "--yes", "--pinned")["session_ids"] == ["p"]


@pytest.mark.usefixtures("slow_resume")
def test_purge_tells_what_it_could_not_delete(run: Run, ask: Ask) -> None:
    ask("resume", AGENT, "--wait", "0")
    ended = run("purge", "--yes", "--json")
    assert ended.exit_code == ExitStatus.CONFLICT
    assert json.loads(ended.stdout)["failed"] == 1
    assert json.loads(ended.stderr)["code"] == "purge_incomplete"


def test_tokens_and_tenants(tmp_path: Path) -> None:
    tokens = {"a" * 16: TenantId("one"), "b" * 16: TenantId("two")}
    with served_world(tmp_path, tokens) as served:
        runner = CliRunner(env={"SESSIOND_URL": served.url, "SESSIOND_TOKEN": None})
        for given in ((), ("--token", "c" * 16)):
            ended = runner.invoke(app, ["list", "--json", *given])
            assert ended.exit_code == ExitStatus.UNAUTHORIZED
            told = json.loads(ended.stderr)
            assert told["code"] == "unauthorized"
            assert "SESSIOND_TOKEN" in told["hint"]
            assert "cccc" not in ended.output
        served.run(served.world.services.catalogue.create, TenantId("one"), AGENT)
        for token, expected in (("a" * 16, [AGENT]), ("b" * 16, [])):
            ended = runner.invoke(app, ["list", "--json"], env={"SESSIOND_TOKEN": token})
            found = [session["session_id"] for session in json.loads(ended.stdout)["sessions"]]
            assert found == expected
