from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.anyio
SESSION = f"/v1/sessions/{AGENT}"


@pytest.fixture
async def suspended(world: World) -> World:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    return world


async def test_a_fork_is_a_new_session(suspended: World, api: httpx.AsyncClient) -> None:
    made = await api.post(f"{SESSION}/fork", json={"session_id": "b", "generation": 1})
    shown = (await api.get("/v1/sessions/b")).json()
    assert (made.status_code, made.headers["location"]) == (201, "/v1/sessions/b")
    assert made.json() == shown
    assert shown["forked_from"] == {"session_id": AGENT, "generation": 1}
    assert (shown["state"], shown["pinned"]) == ("suspended", False)
    assert shown["snapshot"]["new_bytes"] == 0
    source = (await suspended.show()).session
    assert (await api.get(SESSION)).json()["forked_from"] is None
    assert source.forked_from is None


@pytest.mark.usefixtures("suspended")
async def test_a_body_is_not_needed_and_a_key_makes_one_fork(api: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "once"}
    first, again = [await api.post(f"{SESSION}/fork", headers=key) for _ in range(2)]
    assert first.status_code == again.status_code == 201
    assert first.json()["session_id"] == again.json()["session_id"]
    assert len((await api.get("/v1/sessions")).json()["sessions"]) == 2
    other = await api.post(f"{SESSION}/fork", headers=key, json={"session_id": "c"})
    told = other.json()
    assert (other.status_code, told["code"]) == (409, "idempotency_key_reused")
    assert not told["retryable"]


@pytest.mark.usefixtures("suspended")
async def test_refusals(api: httpx.AsyncClient) -> None:
    await api.post("/v1/sessions", json={"session_id": "empty"})
    told = {
        path: (answer.status_code, answer.json()["code"])
        for path, body in {
            "nobody": {},
            "empty": {},
            AGENT: {"session_id": "empty"},
        }.items()
        for answer in [await api.post(f"/v1/sessions/{path}/fork", json=body)]
    }
    assert told == {
        "nobody": (404, "session_not_found"),
        "empty": (404, "snapshot_not_found"),
        AGENT: (409, "session_exists"),
    }
    for body in ({"session_id": "../b"}, {"generation": 0}, {"model": "other"}):
        answer = await api.post(f"{SESSION}/fork", json=body)
        assert answer.status_code == 422


@pytest.mark.usefixtures("suspended")
async def test_other_tenants_cannot_fork_it(guarded: httpx.AsyncClient) -> None:
    headers = {"Authorization": "Bearer alpha-token-0123456789"}
    answer = await guarded.post(f"{SESSION}/fork", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
