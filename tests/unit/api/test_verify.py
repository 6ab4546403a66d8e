from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.store.codecs import Codec
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import SnapshotPlan, write_snapshot
from tests.unit.api.conftest import TOKENS

if TYPE_CHECKING:
    import httpx

    from sessiond.testing.world import World

pytestmark = pytest.mark.anyio
PATH = "/v1/admin/verify"


def a_damaged_snapshot(world: World, tenant: TenantId) -> None:
    plan = SnapshotPlan(chunk_bytes=600, codec=Codec.RAW, tenant=tenant)
    chunk = write_snapshot(world.store, plan).chunks[0]
    path = world.store.root / "segments" / chunk.segment_id[:2] / f"{chunk.segment_id}.seg"
    flip_byte(path, chunk.offset_bytes)


async def test_it_tells_what_is_damaged(api: httpx.AsyncClient, world: World) -> None:
    assert (await api.get(PATH)).status_code == 404
    assert (await api.post(PATH, json={})).json()["damaged"] == 0
    a_damaged_snapshot(world, DEFAULT_TENANT)
    response = await api.post(PATH, json={"repair": True})
    told = response.json()
    assert (response.status_code, told["running"], told["damaged"]) == (200, False, 1)
    (fault,) = told["faults"]
    assert (fault["what"], fault["session_id"], fault["generations"]) == ("chunk", "s-1", [1])
    assert (await api.get(PATH)).json() == told


async def test_nobody_sees_another_tenants_damage(guarded: httpx.AsyncClient, world: World) -> None:
    a_damaged_snapshot(world, TenantId("alpha"))
    for token, tenant in TOKENS.items():
        headers = {"Authorization": f"Bearer {token}"}
        told = (await guarded.post(PATH, json={}, headers=headers)).json()
        assert told["damaged"] == (1 if tenant == "alpha" else 0)
        assert tenant == "alpha" or "s-1" not in str(told)


async def test_one_that_lasts_goes_on(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_damaged_snapshot(world, DEFAULT_TENANT)
    # It gives way to operations: one that never ends holds it up.
    monkeypatch.setattr(type(world.services.operations), "is_busy", True)
    response = await api.post(f"{PATH}?wait=0", json={})
    assert (response.status_code, response.headers["Location"]) == (202, PATH)
    assert response.json()["finished_unix_s"] is None
    response = await api.post(f"{PATH}?wait=0", json={"sample": 0.5})
    assert (response.status_code, response.json()["code"]) == (409, "operation_in_progress")
    monkeypatch.setattr(type(world.services.operations), "is_busy", False)
    assert (await api.post(PATH, json={})).json()["damaged"] == 1


@pytest.mark.parametrize("body", [{"sample": 0}, {"sample": 1.5}, {"tenant": "beta"}])
async def test_what_cannot_be_asked(api: httpx.AsyncClient, body: dict[str, object]) -> None:
    assert (await api.post(PATH, json=body)).status_code == 422
