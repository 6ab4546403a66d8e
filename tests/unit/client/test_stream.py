from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from sessiond.client import ApiError, Event, NotSessiondError, UnreachableError, repeating
from sessiond.client.sse import EventReader
from sessiond.domain.errors import RegistryUnavailableError
from sessiond.domain.ids import SessionId
from sessiond.registry.models import EventRow
from sessiond.testing.world import AGENT

if TYPE_CHECKING:
    from tests.unit.client.conftest import Either


def add(api: Either, kinds: str, session_id: SessionId = AGENT) -> None:
    for kind in kinds:
        api.served.world.registry.add_event(api.tenant, session_id, kind, 1.5, {"n": kind})


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_events_are_followed(api: Either) -> None:
    api.create_session(AGENT)
    api.create_session("other")
    add(api, "ab")
    found = api.first(4, "stream_events", after=0)
    assert [event.session_id for event in found] == [AGENT, "other", AGENT, AGENT]
    assert found[-1].detail == {"n": "b"}
    for place in (found[2].cursor, found[2].event_id):
        assert kinds(api.first(1, "stream_events", after=place)) == ["b"]
    assert kinds(api.first(1, "stream_events", after=0, session_id=AGENT, kinds=["b"])) == ["b"]


def test_a_lost_stream_goes_on_where_it_was(api: Either) -> None:
    """Wherever it is cut: nothing is told twice, and nothing is left out."""
    api.create_session(AGENT)
    add(api, "abcdef")
    for cut in (1, 30, 130, 200, 331):
        api.road.cut_after_bytes = [cut, 2 * cut]
        api.road.faults = [httpx.ConnectError("refused")]
        assert kinds(api.first(7, "stream_events", after=0)) == ["created", *"abcdef"], cut


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_an_event_that_is_cut_off_is_told_once(lines: int) -> None:
    told = '{"event_id": 42, "cursor": "42-a", "session_id": "a", "kind": "b", "at_unix_s": 1.0, '
    block = ["id: 42-a", "event: b", "data: " + told + '"detail": {}}', ""]
    reader = EventReader("41-a")
    assert reader.begin() == {"Last-Event-ID": "41-a"}
    assert [event for line in block[:lines] for event in reader.feed(line)] == []
    assert reader.begin() == {"Last-Event-ID": "41-a"}
    hello = [": sessiond", "id: 41-a", "retry: 1000", ""]
    assert [e.event_id for line in (*hello, *block) for e in reader.feed(line)] == [42]
    assert reader.begin() == {"Last-Event-ID": "42-a"}


def test_a_reader_is_told_of_a_registry_that_was_built_anew(api: Either) -> None:
    api.create_session(AGENT)
    add(api, "ab")
    seen = api.first(3, "stream_events", after=0)[-1]
    with api.served.world.registry._writing() as db:
        mine = EventRow.tenant == api.tenant
        db.execute(update(EventRow).where(mine).values(at_unix_s=2.5))
    found = api.first(4, "stream_events", after=seen.cursor, kinds=["created", "a", "b"])
    assert kinds(found) == ["events_reset", "created", "a", "b"]
    assert found[0].detail == {"after": seen.cursor}
    assert kinds(api.first(1, "stream_events", after=found[0].cursor)) == ["created"]
    with pytest.raises(ApiError, match="events_reset"):
        api.events(AGENT, after=seen.cursor)


def test_a_stream_that_is_not_found_again(api: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "RECONNECT_S", 0.0)
    api.road.faults = [httpx.ConnectError("refused")] * 2
    with pytest.raises(UnreachableError):
        api.first(1, "stream_events")
    api.create_session(AGENT)
    api.road.cut_after_bytes = [5, 5]
    with pytest.raises(UnreachableError):
        api.first(2, "stream_events", after=0)


def test_a_refusal_is_told_at_once(api: Either) -> None:
    with pytest.raises(ApiError) as caught:
        api.first(1, "stream_events", kinds=["a"] * 33)
    assert caught.value.code == "invalid_input"
    with pytest.raises(ApiError, match="invalid_session_id"):
        api.first(1, "stream_events", session_id="a/b")


def test_a_refusal_that_lasts_is_told_as_it_is(
    api: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "RECONNECT_S", 0.0)
    monkeypatch.setattr(api.served.world.registry, "newest_event", unavailable)
    with pytest.raises(ApiError) as caught:
        api.first(1, "stream_events")
    assert (caught.value.code, caught.value.status) == ("registry_unavailable", 503)


LINES = st.lists(st.sampled_from([": note", "id: 3", "retry: 9", "event: x", "", "dat", "junk"]))


@given(before=LINES, after=LINES)
def test_only_messages_count(before: list[str], after: list[str]) -> None:
    reader = EventReader("1")
    message = [
        "id: 7",
        "event: a",
        'data: {"event_id":7,"cursor":"7-a","kind":"a",',
        'data: "at_unix_s":1,"detail":{}}',
    ]
    lines = [*before, "", *message, "", *after]
    found = [event for line in lines for event in reader.feed(line)]
    assert found == [Event(7, "7-a", "a", 1.0, {})]
    assert reader.last_id in ("7", "3")


@pytest.mark.parametrize("data", ["{", "[]", "{}", '{"event_id":"7","kind":"a"}'])
def test_what_is_no_event(data: str) -> None:
    reader = EventReader("")
    assert list(reader.feed(f"data: {data}")) == []
    with pytest.raises(NotSessiondError):
        list(reader.feed(""))


def unavailable(*_: object) -> int:
    raise RegistryUnavailableError
