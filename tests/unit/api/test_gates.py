from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from sessiond.api.gates import ACTIONS, MAX_BODY_BYTES, BodyGate, SessionIdGate
from sessiond.domain.errors import InvalidSessionIdError
from sessiond.domain.ids import parse_session_id
from sessiond.testing.world import AGENT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from starlette.types import Message, Receive, Scope, Send

    from sessiond.testing.world import World

MALFORMED = [
    "..%2Fx",
    "%2e%2e%2fx",
    "%2e%2e",
    "%252e%252e",
    "a/b",
    "a%2Fb",
    "a%2fsuspend",
    "%00",
    "a%00",
    "",
    "x" * 300,
    "%E2%80%A5",
    "%20",
    "a%20b",
    "-a",
    "%2E",
    "a.b",
    "a;b",
    "a%0a",
]
CALLS = [
    ("GET", ""),
    ("PATCH", ""),
    ("DELETE", ""),
    ("POST", "/suspend"),
    ("POST", "/resume"),
    ("POST", "/ticket"),
    ("GET", "/probe"),
    ("GET", "/events"),
    ("GET", "/snapshots"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("written", MALFORMED)
async def test_a_malformed_id_in_the_address(api: httpx.AsyncClient, written: str) -> None:
    for method, action in CALLS:
        response = await api.request(method, f"/v1/sessions/{written}{action}")
        assert response.status_code == 422, (method, action)
        assert response.json()["code"] == "invalid_session_id"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "written", ["../x", "a/b", "\0", "", "x" * 300, "%2e%2e", "‥", " a", "a\n", 7, ["a"], {}]
)
async def test_a_malformed_id_in_the_body(api: httpx.AsyncClient, written: object) -> None:
    response = await api.post("/v1/sessions", json={"session_id": written})
    assert response.status_code == 422
    assert response.json()["code"] == "invalid_session_id"
    assert (await api.get("/v1/sessions")).json()["sessions"] == []


@pytest.mark.anyio
@pytest.mark.parametrize("session_id", ["suspend", "events", "a", "A_-9", "0" * 64])
async def test_ids_that_look_odd_and_are_fine(api: httpx.AsyncClient, session_id: str) -> None:
    assert (await api.post("/v1/sessions", json={"session_id": session_id})).status_code == 201
    response = await api.get(f"/v1/sessions/{session_id}")
    assert response.json()["session_id"] == session_id
    assert (await api.get(f"/v1/sessions/{session_id}/events")).status_code == 200


@pytest.mark.anyio
async def test_the_gate_knows_all_actions(world: World) -> None:
    paths = {route.path for route in world.app().routes if isinstance(route, APIRoute)}
    found = {path.rpartition("/")[2] for path in paths if "{session_id}/" in path}
    assert found == ACTIONS


@given(st.text(max_size=80), st.sampled_from(["", *sorted(ACTIONS)]))
def test_what_passes_the_gate_is_an_id(written: str, action: str) -> None:
    path = f"/v1/sessions/{written}" + (f"/{action}" if action else "")
    raw = f"/v1/sessions/{quote(written, safe='')}" + (f"/{action}" if action else "")
    passed = passes({"type": "http", "path": path, "raw_path": raw.encode()})
    try:
        parse_session_id(written)
    except InvalidSessionIdError:
        assert not passed
    else:
        assert passed


def passes(scope: Scope) -> bool:
    passed = []

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        passed.append(True)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(_message: Message) -> None:
        pass

    asyncio.run(SessionIdGate(app)(scope, receive, send))
    return bool(passed)


@pytest.mark.anyio
@pytest.mark.parametrize("more_bytes", [0, 1])
@pytest.mark.parametrize("in_parts", [False, True])
async def test_a_body_has_a_limit(
    world: World, api: httpx.AsyncClient, *, more_bytes: int, in_parts: bool
) -> None:
    world.start_engine()
    await world.create()
    empty = json.dumps({"continue": {"messages": [{"role": "user", "content": ""}]}})
    filled = "a" * (MAX_BODY_BYTES + more_bytes - len(empty))
    body = empty.replace('""', f'"{filled}"').encode()

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 1 << 20):
            yield body[at : at + (1 << 20)]

    sent = parts() if in_parts else body
    answer = await api.post(
        f"/v1/sessions/{AGENT}/ticket", content=sent, headers={"Content-Type": "application/json"}
    )
    told = answer.json()
    assert (answer.status_code, told.get("code")) == (
        (413, "body_too_large") if more_bytes else (200, None)
    )
    assert more_bytes == 0 or "continue" in told["hint"]


@pytest.mark.anyio
async def test_what_is_announced_as_too_large_is_not_waited_for() -> None:
    sent: list[Any] = []

    async def nobody_asks(*_: object) -> Any:  # noqa: ANN401 - ASGI
        raise AssertionError("a caller that waits is told to go on by the first question")

    async def send(message: Any) -> None:  # noqa: ANN401 - ASGI
        sent.append(message)

    size = str(MAX_BODY_BYTES + 1).encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/sessions",
        "headers": [(b"content-length", size), (b"expect", b"100-continue")],
    }
    await BodyGate(nobody_asks)(scope, nobody_asks, send)
    assert sent[0]["status"] == 413


@pytest.mark.anyio
async def test_no_route_below_v1_answers_without_a_token(
    world: World, guarded: httpx.AsyncClient
) -> None:
    routes = [route for route in world.app().routes if isinstance(route, APIRoute)]
    calls = [(m, r.path) for r in routes for m in r.methods if r.path.startswith("/v1")]
    assert len(calls) > 12
    for method, path in [*calls, ("GET", "/v1"), ("GET", "/v1/nowhere"), ("GET", "/v1/sessions/")]:
        response = await guarded.request(method, path.replace("{", "").replace("}", ""))
        assert response.status_code == 401, (method, path)
        assert response.json()["code"] == "unauthorized"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "header",
    [
        "Bearer alpha-token-012345678",
        "Bearer alpha-token-01234567890",
        "Bearer ",
        "Bearer",
        "Basic alpha-token-0123456789",
        "alpha-token-0123456789",
        "Bearer alpha-token-0123456789 x",
    ],
)
async def test_wrong_tokens(guarded: httpx.AsyncClient, header: str) -> None:
    response = await guarded.get("/v1/sessions", headers={"Authorization": header})
    assert response.status_code == 401


@pytest.mark.anyio
async def test_a_token_names_its_tenant(guarded: httpx.AsyncClient) -> None:
    alpha = {"Authorization": "Bearer alpha-token-0123456789"}
    beta = {"Authorization": "bearer beta-token-0123456789"}
    made = await guarded.post("/v1/sessions", json={"session_id": "s"}, headers=alpha)
    assert made.json()["tenant"] == "alpha"
    assert (await guarded.get("/v1/sessions/s", headers=beta)).status_code == 404
    assert (await guarded.get("/v1/sessions/s", headers=alpha)).status_code == 200


@pytest.mark.anyio
async def test_health_needs_no_token(guarded: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await guarded.get(path)).status_code == 200
