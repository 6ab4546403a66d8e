from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sessiond.client import ApiError, AsyncClient, Client, repeating
from sessiond.testing.world import AGENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.testing.fake_engine import FakeEngine
    from tests.unit.client.conftest import Either


def nothing(_scope: object) -> None:
    pass


def turned(api: Either) -> None:
    api.create_session(AGENT)
    api.turn()


def fail(_scope: object) -> None:
    raise LookupError("the body's")


@pytest.mark.usefixtures("engine")
def test_a_session_is_created_and_suspended_at_the_end(api: Either) -> None:
    scope = api.work(nothing, AGENT, suspend_on_exit=True, idle_timeout_s=7.0)
    assert scope.suspended is None  # it took no turn
    assert api.get_session(AGENT).idle_timeout_s == 7.0
    api.turn()
    scope = api.work(nothing, AGENT, suspend_on_exit=True, idle_timeout_s=9.0)
    assert scope.suspended.snapshot.generation == 1
    shown = api.get_session(AGENT)
    assert (shown.state, shown.idle_timeout_s) == ("suspended", 7.0)
    scope = api.work(nothing, AGENT, resume_on_enter=True)
    assert scope.suspended is None
    assert api.get_session(AGENT).last_outcome == "warm"


@pytest.mark.usefixtures("engine")
def test_it_is_suspended_after_an_error_too(api: Either) -> None:
    turned(api)
    with pytest.raises(LookupError, match="the body's") as caught:
        api.work(fail, AGENT, suspend_on_exit=True)
    assert not hasattr(caught.value, "__notes__")
    assert api.get_session(AGENT).state == "suspended"


def test_the_suspend_at_the_end_survives_a_short_loss_of_the_engine(
    api: Either, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "SETTLE_S", 60.0)  # however slow the machine
    turned(api)
    api.lose(engine, 7)  # for longer than one call is repeated
    scope = api.work(nothing, AGENT, suspend_on_exit=True)
    assert scope.suspended.snapshot.generation == 1


def test_an_error_at_the_end_does_not_hide_the_body_s(
    api: Either, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "SETTLE_S", 0.0)
    turned(api)
    api.served.world.kill_engine(engine)
    with pytest.raises(LookupError, match="the body's") as caught:
        api.work(fail, AGENT, suspend_on_exit=True)
    (note,) = caught.value.__notes__
    assert "no_engine" in note
    with pytest.raises(ApiError, match="no_engine"):
        api.work(nothing, AGENT, suspend_on_exit=True)


def test_a_turn_that_is_just_ending_is_waited_for(
    api: Either, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned(api)
    refusals: list[str] = []
    engine.begin_turn(api.tenant, AGENT)
    suspend = api.client.suspend

    def counted(session_id: str, **options: Any) -> Any:  # noqa: ANN401 - of either kind
        refusals.append(session_id)
        if len(refusals) == 2:
            engine.end_turn(api.tenant, AGENT)
        return suspend(session_id, **options)

    monkeypatch.setattr(api.client, "suspend", counted)
    scope = api.work(nothing, AGENT, suspend_on_exit=True)
    assert scope.suspended.snapshot.generation == 1


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_what_other_clients_need(make: Callable[..., Any]) -> None:
    cases = [
        (("http://h:1/", "x" * 16), ("http://h:1/v1", "x" * 16)),
        (("http://h:1/v1", ""), ("http://h:1/v1", "none")),
        (("https://h/base", ""), ("https://h/base/v1", "none")),
    ]
    for given, (base_url, api_key) in cases:
        scope = make(*given).session(AGENT)
        headers = {"X-Session-Id": AGENT}
        assert scope.headers == headers
        assert scope.openai_arguments == {
            "base_url": base_url,
            "api_key": api_key,
            "default_headers": headers,
        }


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("url", "token"),
    [("", ""), ("localhost:8600", ""), ("ftp://h", ""), ("http://", ""), ("http://h", "a\nb")],
)
def test_what_no_client_is_made_of(make: Callable[..., Any], url: str, token: str) -> None:
    with pytest.raises(ApiError) as caught:
        make(url, token)
    assert caught.value.code == "invalid_input"
