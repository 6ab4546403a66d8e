from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.app import drain, drain_client
from sessiond.app.config import Settings
from sessiond.app.drain_client import Drain, parsed_deadline_s
from sessiond.domain.reasons import Cause, Reason
from sessiond.testing.draining_daemon import DrainingDaemon
from sessiond_cli.options import DEFAULT_URL

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 30.0


@pytest.fixture
def daemon() -> Iterator[DrainingDaemon]:
    with DrainingDaemon() as serving:
        yield serving


def lost(number: int = 1) -> list[dict[str, Any]]:
    session = {"tenant": "t", "detail": "d", "tokens": 96, "code": "turn_in_flight"}
    return [{**session, "session_id": f"s-{at}"} for at in range(number)]


def test_the_default_address_is_the_daemons() -> None:
    fields = Settings.model_fields
    listens = f"http://{fields['host'].default}:{fields['port'].default}"
    assert drain_client.DEFAULT_URL == DEFAULT_URL == listens


def test_all_ranks_of_one_launch_are_drained_and_no_others(daemon: DrainingDaemon) -> None:
    daemon.knows("a", "mine", saved=[{}, {}])
    daemon.knows("b", "mine", saved=[{}])
    daemon.knows("c", "other")
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert (drained.complete, drained.text) == (True, "drained: 3 sessions stored, 0 not")
    posted = {one.path: one.body for one in daemon.asked if one.method == "POST"}
    assert sorted(posted) == ["/v1/engines/a/drain", "/v1/engines/b/drain"]
    assert all(0 < body["deadline_s"] <= DEADLINE_S for body in posted.values())


def test_an_engine_is_found_by_where_it_serves(daemon: DrainingDaemon) -> None:
    daemon.knows("a", "", "http://127.0.0.1:8000/")
    daemon.knows("b", "", "http://127.0.0.1:8001")
    Drain(daemon.url, DEADLINE_S, engine_url="http://localhost:8000").run()
    assert [one.path for one in daemon.asked[1:]] == ["/v1/engines/a/drain"]


def test_what_was_not_stored_is_named(daemon: DrainingDaemon) -> None:
    daemon.knows("a", "mine", complete=False, unsaved=lost(25))
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert not drained.complete
    lines = drained.text.splitlines()
    assert lines[:2] == [
        "drained: 0 sessions stored, 25 not", "  t/s-0: 96 tokens, turn_in_flight",
    ]  # fmt: skip
    assert lines[-1] == "  and 5 more"
    assert len(lines) == 22


def test_why_there_may_be_more_is_told(daemon: DrainingDaemon) -> None:
    cause = Cause(Reason.HEAD_UNCONFIRMED)
    daemon.knows("a", "mine", complete=False, causes=[cause.as_json()])
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert drained.text.splitlines()[1:] == [f"  head_unconfirmed: {cause.in_words}"]


def test_the_token_is_sent_and_no_proxy_sees_it(
    daemon: DrainingDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIOND_TOKEN", "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    daemon.knows("a", "mine")
    assert Drain(daemon.url, DEADLINE_S, "mine").run().complete
    assert {one.token for one in daemon.asked} == {"secret"}


def test_a_refusal_is_told(daemon: DrainingDaemon) -> None:
    daemon.knows("a", "mine")
    daemon.status = 403
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert not drained.complete
    assert "forbidden: Only operators may. Ask one." in drained.text


def test_without_a_daemon_it_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        drained = Drain(url, DEADLINE_S, "mine").run()
    assert (drained.complete, url in drained.text) == (False, True)
    assert "refused" in drained.text


def test_a_server_that_speaks_no_http_is_told(daemon: DrainingDaemon) -> None:
    daemon.knows("a", "mine")
    daemon.strange = True
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert (drained.complete, "SSH-2.0" in drained.text) == (False, True)


def test_an_engine_that_the_daemon_does_not_know_is_not_called_drained(
    daemon: DrainingDaemon,
) -> None:
    daemon.knows("a", "other")
    drained = Drain(daemon.url, DEADLINE_S, "mine").run()
    assert (drained.complete, "no such engine" in drained.text) == (False, True)


@pytest.mark.parametrize("told", [{"engines": None}, {"engines": [{}]}, {"other": 1}, {}])
def test_an_answer_that_is_none_of_a_daemons(
    daemon: DrainingDaemon, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    monkeypatch.setattr(daemon, "answer", lambda _: (200, told))
    assert not Drain(daemon.url, DEADLINE_S, "mine").run().complete


def test_a_daemon_that_does_not_answer_is_given_up(
    daemon: DrainingDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_client, "_ON_THE_WAY_S", 0.2)
    daemon.knows("a", "mine")
    daemon.gate.clear()
    drained = Drain(daemon.url, 0.0, "mine").run()
    assert (drained.complete, "timed out" in drained.text) == (False, True)


@pytest.mark.parametrize("text", ["-1", "3601", "soon", "nan", "inf", ""])
def test_wrong_deadlines(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parsed_deadline_s(text)


def test_the_command_says_by_its_status_whether_all_is_stored(
    daemon: DrainingDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.knows("a", "", "http://127.0.0.1:8000")
    assert drain.run(["--url", daemon.url]) == 0
    daemon.answers["a"] |= {"complete": False, "unsaved": lost()}
    assert drain.run(["--url", daemon.url, "--deadline-s", "5"]) == 1
    assert "t/s-0: 96 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        drain.run(["--deadline-s", "-1"])
