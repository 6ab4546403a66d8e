from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from sessiond.domain.cron import parse_cron
from sessiond.domain.windows import SweepWindow
from sessiond.testing.world import AGENT, QUICK, World, open_world, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

OPERATOR = {"Authorization": "Bearer operator-token-0123456789"}
ALPHA = {"Authorization": "Bearer alpha-token-0123456789"}


async def ready(api: httpx.AsyncClient) -> bool:
    paused: bool = (await api.get("/readyz")).json()["sweeps_paused"]
    return not paused


async def test_pause_and_unpause(world: World, api: httpx.AsyncClient) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    world.pass_time(301)
    assert await ready(api)
    paused = (await api.post("/v1/admin/pause")).json()
    assert (paused["by"], paused["reason"], paused["until_unix_s"]) == ("default", "", None)
    assert not await ready(api)
    swept = (await api.post("/v1/admin/sweep")).json()
    assert (swept["due"], swept["suspended"], swept["paused"]) == (1, 0, True)
    assert "sessiond_sweeps_paused 1.0" in (await api.get("/metrics")).text
    assert (await api.post("/v1/admin/unpause")).json() == {"was_paused": True}
    assert (await api.post("/v1/admin/unpause")).json() == {"was_paused": False}
    assert await ready(api)
    swept = (await api.post("/v1/admin/sweep")).json()
    assert swept == {
        "watched": 1,
        "due": 1,
        "windowed": 0,
        "suspended": 1,
        "failed": 0,
        "yielded": 0,
        "throttled": 0,
        "refused": 0,
        "refused_for": {},
        "paused": False,
    }


async def test_a_pause_with_an_end(world: World, api: httpx.AsyncClient) -> None:
    until_unix_s = world.services.context.now() + 60
    body = {"reason": "a backup runs", "until_unix_s": until_unix_s}
    paused = (await api.post("/v1/admin/pause", json=body)).json()
    assert (paused["reason"], paused["until_unix_s"]) == ("a backup runs", until_unix_s)
    assert (await api.get("/v1/admin/sweep")).json()["paused"] == paused
    world.pass_time(61)
    assert await ready(api)
    assert (await api.get("/v1/admin/sweep")).json()["paused"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"until_unix_s": 1.0},
        {"until_unix_s": 0},
        {"until_unix_s": True},
        {"until_unix_s": "tomorrow"},
        {"until_unix_s": 1e300},
        {"reason": "x" * 513},
        {"reason": None},
        {"why": "x"},
        [],
    ],
    ids=str,
)
async def test_a_pause_that_cannot_be(api: httpx.AsyncClient, body: Any) -> None:  # noqa: ANN401 - JSON
    refused = await api.post("/v1/admin/pause", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert await ready(api)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/admin/pause"),
        ("POST", "/v1/admin/unpause"),
        ("GET", "/v1/admin/sweep"),
        ("POST", "/v1/admin/sweep"),
    ],
)
async def test_it_is_for_operators(guarded: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await guarded.request(method, path)).status_code == 401
    refused = await guarded.request(method, path, headers=ALPHA)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await guarded.request(method, path, headers=OPERATOR)).status_code == 200


async def test_windows_are_shown(tmp_path: Path) -> None:
    evening = SweepWindow("evening", parse_cron("0 19  * * *"), "Europe/Berlin", 300.0)
    limits = replace(QUICK, sweep_windows=(evening,), idle_timeout_s=7.0)
    async with open_world(tmp_path, limits=limits) as world:
        transport = httpx.ASGITransport(world.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://sessiond") as api:
            assert (await api.get("/v1/admin/sweep")).json() == {
                "paused": None,
                "idle_timeout_s": 7.0,
                "windows": [
                    {
                        "name": "evening",
                        "cron": "0 19 * * *",
                        "timezone": "Europe/Berlin",
                        "idle_s": 300.0,
                    }
                ],
            }
