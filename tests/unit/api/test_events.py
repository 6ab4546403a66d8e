"""Streams of events, over real HTTP."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import insert

from sessiond.domain.cursors import cursor_of, parse_cursor
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.registry.models import EventRow
from sessiond.testing.served import ServedWorld, served_world
from sessiond.testing.world import AGENT
from tests.unit.api.conftest import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = 3000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedWorld]:
    with served_world(tmp_path) as served:
        served.run(served.world.create)
        yield served
        served.world.services.feed.close()


@contextmanager
def stream(
    served: ServedWorld, query: str = "", headers: dict[str, str] | None = None
) -> Iterator[Iterator[dict[str, str]]]:
    """Yield the blocks of a stream of events, comments under the name ``""``."""
    url = f"{served.url}/v1/events{query}"
    with httpx.stream("GET", url, headers=headers, timeout=20.0) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield blocks(answer.iter_lines())


def blocks(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    block: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            block[name] = value
        else:
            yield block
            block = {}


def told(block: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    data = json.loads(block["data"])
    assert block["id"] == data["cursor"]
    assert block["event"] == data["kind"]
    return data


def test_events_as_they_come(served: ServedWorld) -> None:
    with stream(served) as found:
        hello = next(found)
        assert hello["retry"] == "1000"
        served.run(served.world.services.catalogue.change, DEFAULT_TENANT, AGENT, {"pinned": True})
        changed = told(next(found))
        assert changed == {
            "event_id": parse_cursor(hello["id"]).number + 1,
            "cursor": changed["cursor"],
            "session_id": AGENT,
            "kind": "changed",
            "at_unix_s": changed["at_unix_s"],
            "detail": {"pinned": True},
        }


def test_where_to_begin(served: ServedWorld) -> None:
    for kind in "ab":
        served.world.registry.add_event(DEFAULT_TENANT, AGENT, kind, 1.5, {"text": "line\n\nline"})
    events = served.world.registry.tenant_events(DEFAULT_TENANT)
    ids = [cursor_of(event) for event in events]
    cases: list[tuple[str, dict[str, str], list[str]]] = [
        ("?after=0", {}, ["created", "a", "b"]),
        (f"?after={ids[0]}", {}, ["a", "b"]),
        (f"?after={ids[0].number}", {}, ["a", "b"]),
        ("?after=0", {"Last-Event-ID": str(ids[1])}, ["b"]),
        ("?after=0&kind=a&kind=created", {}, ["created", "a"]),
        (f"?after=0&session_id={AGENT}&kind=b", {}, ["b"]),
    ]
    for query, headers, wanted in cases:
        with stream(served, query, headers) as found:
            next(found)
            assert [told(next(found))["kind"] for _ in wanted] == wanted, query


def test_a_reader_of_another_registry_is_told(served: ServedWorld) -> None:
    lost = "1-0123456789ab"
    with stream(served, "?kind=created", {"Last-Event-ID": lost}) as found:
        # Until it was told, it comes back with the same.
        assert next(found)["id"] == lost
        reset = told(next(found))
        assert (reset["kind"], reset["cursor"], reset["event_id"]) == ("events_reset", "0", 0)
        assert reset["detail"] == {"after": lost}
        assert told(next(found))["kind"] == "created"
    url = f"{served.url}/v1/sessions/{AGENT}/events"
    refused = httpx.get(url, params={"after": lost})
    assert (refused.status_code, refused.json()["code"]) == (409, "events_reset")
    (created,) = httpx.get(url, params={"after": "0"}).json()["events"]
    assert httpx.get(url, params={"after": created["cursor"]}).json() == {"events": []}


def test_what_cannot_be_asked_for(served: ServedWorld) -> None:
    cases: list[tuple[str, dict[str, str], str]] = [
        ("?after=-1", {}, "invalid_input"),
        ("?after=x", {}, "invalid_input"),
        (f"?after={2**63}", {}, "invalid_input"),
        ("?session_id=a%2Fb", {}, "invalid_session_id"),
        ("?" + "&".join(["kind=a"] * 33), {}, "invalid_input"),
        ("?after=1-", {}, "invalid_input"),
        ("", {"Last-Event-ID": "x"}, "invalid_input"),
        ("", {"Last-Event-ID": "-1"}, "invalid_input"),
        ("", {"Last-Event-ID": str(2**63)}, "invalid_input"),
        ("", {"Last-Event-ID": 5000 * "9"}, "invalid_input"),
    ]
    for query, headers, code in cases:
        answer = httpx.get(f"{served.url}/v1/events{query}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, code), (query, headers)


def test_each_tenant_hears_of_its_own(tmp_path: Path) -> None:
    alpha, beta = (
        {"Authorization": f"Bearer {name}-token-0123456789"} for name in ("alpha", "beta")
    )
    with served_world(tmp_path, TOKENS) as served:
        assert httpx.get(f"{served.url}/v1/events").status_code == 401
        with stream(served, headers=alpha) as found:
            next(found)
            for headers, name in ((beta, "b"), (alpha, "a")):
                url = f"{served.url}/v1/sessions"
                httpx.post(url, json={"session_id": name}, headers=headers).raise_for_status()
            assert told(next(found))["session_id"] == "a"


def test_a_place_is_free_again_when_its_listener_hangs_up(served: ServedWorld) -> None:
    url, most = f"{served.url}/v1/events", served.world.services.context.limits.event_listeners
    with httpx.Client(limits=httpx.Limits(max_connections=None)) as client:
        opened = [client.send(client.build_request("GET", url), stream=True) for _ in range(most)]
        refused = client.get(url)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_listeners")
        opened.pop().close()
        deadline_s = time.monotonic() + 20
        while True:
            again = client.send(client.build_request("GET", url), stream=True)
            again.close()
            if again.status_code == 200:
                break
            assert time.monotonic() < deadline_s
        for answer in opened:
            answer.close()


def test_a_slow_reader_is_waited_for(served: ServedWorld) -> None:
    """More than the sockets hold: what was not taken has not been read either."""
    registry, reads = served.world.registry, []
    row = {"tenant": DEFAULT_TENANT, "session_id": AGENT, "kind": "x", "at_unix_s": 1.5}
    with registry._writer.begin() as db:
        db.execute(insert(EventRow), [{**row, "detail": {"text": "x" * 6000}}] * MANY)
    read = registry.tenant_events

    def counted(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        reads.append(options["after"])
        return read(*arguments, **options)

    registry.tenant_events = counted  # type: ignore[method-assign]
    with stream(served, "?after=0&kind=x") as found:
        next(found)
        seen = -1
        while seen != len(reads):
            seen = len(reads)
            time.sleep(0.3)
        assert len(reads) < MANY / 100
        ids = [told(next(found))["event_id"] for _ in range(MANY)]
    assert ids == sorted(set(ids))
