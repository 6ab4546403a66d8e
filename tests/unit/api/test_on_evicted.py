"""What a suspend does about evicted KV, over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from sessiond.testing.world import AGENT, PATIENT, World, open_world, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
SESSION = f"/v1/sessions/{AGENT}"


async def test_a_session_has_a_choice_and_a_call_another(
    world: World, api: httpx.AsyncClient
) -> None:
    engine = world.start_engine()
    made = await api.post("/v1/sessions", json={"session_id": AGENT, "on_evicted": "skip"})
    assert made.json()["on_evicted"] == "skip"
    await world.turn(AGENT, text(100))
    engine.evict(keep_tokens=50)
    skipped = await api.post(f"{SESSION}/suspend")
    assert (skipped.status_code, skipped.json()["code"]) == (422, "suspend_skipped")
    assert "48 of 96 tokens" in skipped.json()["detail"]
    told = (await api.post(f"{SESSION}/suspend?on_evicted=recompute")).json()
    assert (told["missing_tokens"], told["evicted_tokens"], told["recomputed_tokens"]) == (
        0,
        48,
        48,
    )
    untouched = (await api.patch(SESSION, json={"pinned": True})).json()
    assert untouched["on_evicted"] == "skip"
    assert (await api.patch(SESSION, json={"on_evicted": None})).json()["on_evicted"] is None


async def test_a_suspend_of_another_choice_is_in_the_way(tmp_path: Path) -> None:
    async with open_world(tmp_path, limits=PATIENT) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        gate = engine.faults.gates["suspend"] = asyncio.Event()
        transport = httpx.ASGITransport(world.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://sessiond") as api:
            assert (await api.post(f"{SESSION}/suspend?wait=0")).status_code == 202
            refused = await api.post(f"{SESSION}/suspend?on_evicted=skip")
            assert (refused.status_code, refused.json()["code"]) == (409, "operation_in_progress")
            assert refused.json()["retryable"]
            assert "'on_evicted' is prefix" in refused.json()["detail"]
            gate.set()
            again = await api.post(f"{SESSION}/suspend?on_evicted=prefix")
            assert again.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/sessions", {"on_evicted": "archive"}),
        ("PATCH", SESSION, {"on_evicted": "archive"}),
        ("POST", f"{SESSION}/suspend?on_evicted=archive", None),
    ],
)
async def test_there_are_three_choices(
    world: World, api: httpx.AsyncClient, method: str, path: str, body: object
) -> None:
    await world.create()
    assert (await api.request(method, path, json=body)).status_code == 422
