"""How it is decided between loading and computing, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.service.records import record_of, session_of
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from sessiond.domain.session import Session

pytestmark = pytest.mark.anyio
SESSION = f"/v1/sessions/{AGENT}"


async def test_a_session_has_a_policy(world: World, api: httpx.AsyncClient) -> None:
    body = {"session_id": AGENT, "plan_policy": "objective", "objective_s": 0.5}
    made = (await api.post("/v1/sessions", json=body)).json()
    assert (made["plan_policy"], made["objective_s"]) == ("objective", 0.5)
    pinned = (await api.patch(SESSION, json={"pinned": True})).json()
    assert (pinned["plan_policy"], pinned["objective_s"]) == ("objective", 0.5)
    session: Session = (await world.show()).session
    told = session_of(record_of(session))  # a registry that is rebuilt from the store knows it
    assert (told.plan_policy, told.objective_s) == (session.plan_policy, 0.5)
    none = (await api.patch(SESSION, json={"plan_policy": None, "objective_s": None})).json()
    assert (none["plan_policy"], none["objective_s"]) == (None, None)


@pytest.mark.parametrize(
    "body", [{"plan_policy": "sometimes"}, {"objective_s": 0}, {"objective_s": "soon"}]
)
async def test_what_is_no_policy_is_refused(
    world: World, api: httpx.AsyncClient, body: dict[str, object]
) -> None:
    await world.create()
    assert (await api.patch(SESSION, json=body)).status_code == 422


async def test_a_call_has_a_policy_and_its_plan_is_told(
    world: World, api: httpx.AsyncClient
) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine()

    never = (await api.post(f"{SESSION}/resume?plan_policy=never_load")).json()
    assert (never["outcome"], never["reason"]) == ("recomputed", "policy_never_load")
    assert never["plan"]["choice"] == "recompute"
    assert never["timing"] is None
    probe = (await api.get(f"{SESSION}/probe")).json()
    assert (probe["plan"], probe["decision"]["choice"]) == ("load", "load")
    assert dict(probe["decision_table"])["policy"] == "always_load"
    ticket = (await api.post(f"{SESSION}/ticket")).json()
    assert ticket["decision"]["load_tokens"] == 96
    always = (await api.post(f"{SESSION}/resume?plan_policy=always_load")).json()
    assert always["outcome"] == "restored"
    assert always["timing"]["disk_tokens"] == 96
    assert always["plan"]["load"]["stored_bytes"] > 0
    wrong = await api.post(f"{SESSION}/resume?plan_policy=perhaps")
    assert wrong.status_code == 422
    events = await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    told = [one.detail["plan"] for one in events if one.kind == "resumed"]
    assert told == [never["plan"], always["plan"]]


async def test_an_idempotency_key_is_for_one_policy(world: World, api: httpx.AsyncClient) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    headers = {"Idempotency-Key": "resume-1"}
    first = await api.post(f"{SESSION}/resume?plan_policy=never_load", headers=headers)
    assert first.status_code == 200
    other = await api.post(f"{SESSION}/resume", headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
