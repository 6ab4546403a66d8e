from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.world import AGENT, World, text

if TYPE_CHECKING:
    import httpx

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(world: World) -> FakeEngine:
    """An engine in which the agent has taken a turn."""
    started = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    return started


async def test_an_engine_is_drained_and_undrained(
    api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    path = f"/v1/engines/{engine.info.engine_id}"
    drained = await api.post(f"{path}/drain", json={"deadline_s": 60})
    assert drained.status_code == 200
    told = drained.json()
    assert told.pop("seconds") >= 0
    assert told == {
        "engine_id": engine.info.engine_id,
        "complete": True,
        "saved": [{"tenant": DEFAULT_TENANT, "session_id": AGENT, "generation": 1, "tokens": 96}],
        "unsaved": [],
        "causes": [],
    }
    assert (await api.get(path)).json()["draining"] is True
    (listed,) = (await api.get("/v1/engines")).json()["engines"]
    assert listed["draining"] is True
    undrained = [(await api.post(f"{path}/undrain")).json() for _ in range(2)]
    assert [one["was_draining"] for one in undrained] == [True, False]
    assert (await api.get(path)).json()["draining"] is False


async def test_what_is_not_stored_is_told_with_its_code(
    api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    path = f"/v1/engines/{engine.info.engine_id}/drain"
    told = (await api.post(path, json={"deadline_s": 0})).json()
    assert told["complete"] is False
    (lost,) = told["unsaved"]
    assert (lost["session_id"], lost["code"], lost["tokens"]) == (AGENT, "turn_in_flight", 108)


async def test_refusals(api: httpx.AsyncClient, engine: FakeEngine) -> None:
    path = f"/v1/engines/{engine.info.engine_id}/drain"
    for deadline_s in (-1, 3601, "soon", None):
        answer = await api.post(path, json={"deadline_s": deadline_s})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    for engine_id in ("nobody", "..%2F..", "a" * 200):
        for action in ("drain", "undrain"):
            answer = await api.post(f"/v1/engines/{engine_id}/{action}")
            assert answer.status_code == 404
            assert answer.json()["code"] in {"engine_not_found", "not_found"}


async def test_only_operators_may(guarded: httpx.AsyncClient, engine: FakeEngine) -> None:
    for action in ("drain", "undrain"):
        path = f"/v1/engines/{engine.info.engine_id}/{action}"
        codes = [
            (await guarded.post(path, headers={"Authorization": f"Bearer {token}"})).status_code
            for token in ("alpha-token-0123456789", "operator-token-0123456789")
        ]
        assert codes == [403, 200]
