from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from sessiond.client import (
    ApiError,
    NotSessiondError,
    OperationRunningError,
    Session,
    UnreachableError,
    repeating,
)
from sessiond.client.calls import Call
from sessiond.client.decoding import decode
from sessiond.testing.world import AGENT
from tests.unit.client.conftest import OPERATOR

if TYPE_CHECKING:
    from sessiond.testing.fake_engine import FakeEngine
    from tests.unit.client.conftest import Either

LOST = [httpx.ConnectError("refused"), httpx.ConnectTimeout("late")]


def test_the_whole_story(api: Either, engine: FakeEngine) -> None:
    made = api.create_session(AGENT, model="smol", idle_timeout_s=60.0)
    assert (made.state, made.model, made.idle_timeout_s) == ("cold", "smol", 60.0)
    ticket = api.ticket(AGENT)
    assert ticket.kv_transfer_params["sessiond_ticket"] not in repr(ticket)
    api.turn()
    suspended = api.suspend(AGENT, on_evicted="skip")
    assert (suspended.snapshot.tokens_restorable, suspended.causes) == (96, ())
    assert [one.generation for one in api.snapshots(AGENT)] == [1]
    assert api.probe(AGENT).tokens_loadable == 96
    api.served.world.kill_engine(engine)
    api.served.world.start_engine()
    resumed = api.resume(AGENT)
    assert (resumed.outcome, resumed.disk_tokens) == ("restored", 96)
    assert api.change_session(AGENT, pinned=True).pinned
    assert api.get_session(AGENT).last_outcome == "restored"
    assert [one.model for one in api.engines().engines] == ["smol"]
    deleted = api.delete_session(AGENT)
    assert (deleted.session_id, deleted.manifests) == (AGENT, 1)
    kinds = [event.kind for event in api.events(AGENT)]
    assert kinds[0] == "created"
    assert kinds[-1] == "deleted"


@pytest.mark.usefixtures("engine")
def test_a_fork_goes_its_own_way(api: Either) -> None:
    api.create_session(AGENT)
    api.turn()
    api.suspend(AGENT)
    forked = api.fork(AGENT, "fork-1")
    assert (forked.session_id, forked.forked_from.session_id) == ("fork-1", AGENT)
    assert api.fork(AGENT).session_id not in (AGENT, "fork-1")


@pytest.mark.usefixtures("engine")
def test_operators_calls(api: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    (engine,) = api.engines().engines
    with pytest.raises(ApiError, match="forbidden"):
        api.drain(engine.engine_id, deadline_s=1.0)
    monkeypatch.setattr(api.client, "_authorization", OPERATOR)
    drained = api.drain(engine.engine_id, deadline_s=1.0)
    assert (drained.engine_id, drained.complete, drained.saved) == (engine.engine_id, True, ())
    assert api.engines().engines[0].draining
    assert api.undrain(engine.engine_id).was_draining
    assert api.pause("backup", until_unix_s=4e9).reason == "backup"
    assert [api.unpause(), api.unpause()] == [True, False]


def test_lists_are_read_page_by_page(api: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiond.client.calls._PAGE", 2)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        api.create_session(name, model="even" if int(name[1]) % 2 == 0 else "odd")
    for number in range(4):
        api.change_session("s0", idle_timeout_s=float(number))
    assert [one.session_id for one in api.list_sessions()] == names
    assert [one.session_id for one in api.list_sessions(model="odd")] == ["s1", "s3"]
    assert api.list_sessions(pinned=True) == []
    assert [one.kind for one in api.events("s0")] == ["created", *["changed"] * 4]
    first = api.events("s0")[0]
    for place in (first.cursor, first.event_id):
        assert len(api.events("s0", after=place)) == 4


def test_errors_have_a_code_and_a_hint(api: Either) -> None:
    with pytest.raises(ApiError) as caught:
        api.get_session("nobody")
    error = caught.value
    assert (error.code, error.status, error.retryable) == ("session_not_found", 404, False)
    assert "nobody" in error.detail
    api.create_session(AGENT)
    with pytest.raises(ApiError, match="session_exists"):
        api.create_session(AGENT)
    with pytest.raises(ApiError, match="sessiond engine") as caught:
        api.suspend(AGENT)
    assert caught.value.code == "no_engine"
    assert caught.value.retryable


def test_an_id_that_is_none_is_not_sent(api: Either) -> None:
    for name in ("get_session", "suspend", "delete_session", "create_session", "ticket"):
        for session_id in ("", ".", "..", "a/b", "a?x=1", "x" * 65, "ä"):
            with pytest.raises(ApiError) as caught:
                getattr(api, name)(session_id)
            assert caught.value.code == "invalid_session_id"
    assert api.road.seen == []


@pytest.mark.parametrize("fault", LOST)
def test_a_call_that_found_nobody_is_sent_again(api: Either, fault: Exception) -> None:
    api.road.faults = [fault] * 3
    assert api.create_session(AGENT).session_id == AGENT
    assert len(set(api.road.keys())) == 1
    assert len(api.road.keys()) == 4
    api.road.faults = [fault] * 4
    with pytest.raises(UnreachableError) as caught:
        api.delete_session(AGENT)
    assert caught.value.code == "daemon_unreachable"


@pytest.mark.usefixtures("engine")
def test_a_call_whose_answer_was_lost_is_not_done_twice(api: Either) -> None:
    api.road.lost_answers = [httpx.ReadError("lost")]
    made = api.create_session()
    assert [one.session_id for one in api.list_sessions()] == [made.session_id]
    api.create_session(AGENT)
    api.turn()
    api.road.lost_answers = [httpx.ReadError("lost"), httpx.RemoteProtocolError("cut")]
    assert api.suspend(AGENT).snapshot.generation == 1
    kinds = [event.kind for event in api.events(AGENT)]
    assert kinds.count("suspended") == 1
    api.road.lost_answers = [httpx.ReadError("lost")]
    with pytest.raises(UnreachableError):
        api.delete_session(AGENT)  # a second one would only say that there is no such session
    with pytest.raises(ApiError, match="session_not_found"):
        api.get_session(AGENT)


def test_a_daemon_that_cannot_now_is_asked_again_with_the_same_key(api: Either) -> None:
    api.create_session(AGENT)
    del api.road.seen[:]
    with pytest.raises(ApiError, match="no_engine"):
        api.suspend(AGENT)
    assert len(api.road.keys()) == 4
    assert len(set(api.road.keys())) == 1


@pytest.mark.parametrize(("status", "code"), [(0, "engine_unreachable"), (500, "engine_refused")])
def test_what_failed_is_tried_anew(api: Either, engine: FakeEngine, status: int, code: str) -> None:
    """An operation that failed is told of again under its key, so an attempt has its own."""
    api.create_session(AGENT)
    api.turn()
    del api.road.seen[:]
    api.lose(engine, 3, status)
    assert api.suspend(AGENT).snapshot.generation == 1
    assert len(set(api.road.keys())) == 3
    told = [(event.kind, event.detail.get("code")) for event in api.events(AGENT)]
    assert told[2:] == [("suspend_failed", code)] * 2 + [("suspended", None)]


def test_what_failed_while_its_answer_was_lost_is_told_first(
    api: Either, engine: FakeEngine
) -> None:
    api.create_session(AGENT)
    api.turn()
    del api.road.seen[:]
    api.lose(engine, 2)
    api.road.lost_answers = [httpx.ReadError("lost")]
    assert api.suspend(AGENT).snapshot.generation == 1
    first, asked_again, anew = api.road.keys()
    assert first == asked_again != anew


def test_a_long_call_may_be_left_alone(api: Either, engine: FakeEngine) -> None:
    api.create_session(AGENT)
    api.turn()
    gate = engine.faults.gates["suspend"] = asyncio.Event()
    with pytest.raises(OperationRunningError) as caught:
        api.suspend(AGENT, wait_s=0.0)
    running = caught.value.operation
    assert (running.kind, running.has_ended) == ("suspend", False)
    with pytest.raises(OperationRunningError):
        api.wait(running, wait_s=0.05)

    async def open_gate() -> None:
        gate.set()

    api.served.run(open_gate)
    ended = api.wait(running)
    assert (ended.status, ended.operation_id) == ("succeeded", running.operation_id)


def test_a_long_call_is_waited_for_beyond_its_first_answer(
    api: Either, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "ROUND_S", 0.0)
    api.create_session(AGENT)
    api.turn()
    report = api.suspend(AGENT)
    assert (report.session_id, report.snapshot.generation) == (AGENT, 1)
    assert api.resume(AGENT).outcome == "warm"
    api.turn(200)
    engine.faults.http_errors["suspend"] = 500
    with pytest.raises(ApiError) as caught:
        api.suspend(AGENT)
    assert caught.value.code == "engine_refused"
    assert api.delete_session(AGENT).manifests == 1


def test_what_is_not_sessiond(api: Either) -> None:
    with pytest.raises(NotSessiondError) as caught:
        api._run(Call("GET", "/docs", lambda _status, body: body))
    assert caught.value.code == "not_sessiond"
    with pytest.raises(NotSessiondError, match="Session"):
        api._run(Call("GET", "/healthz", lambda _status, body: decode(Session, body)))
