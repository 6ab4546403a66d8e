from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.fake_tokenizer import encode, render, spell
from sessiond.testing.world import AGENT, World, text

if TYPE_CHECKING:
    import httpx

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
SESSION = f"/v1/sessions/{AGENT}"


@pytest.fixture
async def engine(world: World, api: httpx.AsyncClient) -> FakeEngine:
    engine = world.start_engine()
    await api.post("/v1/sessions", json={"session_id": AGENT, "model": "smol"})
    return engine


async def turn(world: World, api: httpx.AsyncClient, length: int = 100) -> dict[str, Any]:
    """Take a turn as an agent does that knows nothing but the two HTTP interfaces."""
    ticket = (await api.post(f"{SESSION}/ticket")).json()
    response = await world.http.post(
        f"{ticket['engine']['url']}/v1/completions",
        json={
            "model": ticket["engine"]["model"],
            "prompt": list(text(length)),
            "max_tokens": 8,
            "cache_salt": ticket["cache_salt"],
            "kv_transfer_params": ticket["kv_transfer_params"],
        },
    )
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_whole_story(world: World, api: httpx.AsyncClient, engine: FakeEngine) -> None:
    await turn(world, api)
    suspended = await api.post(f"{SESSION}/suspend")
    assert suspended.status_code == 200
    assert suspended.json()["snapshot"]["tokens_restorable"] == 96
    assert suspended.json()["session_id"] == AGENT
    shown = (await api.get(SESSION)).json()
    assert shown["state"] == "suspended"
    assert shown["snapshot"] == suspended.json()["snapshot"]

    world.kill_engine(engine)
    shown = (await api.get(SESSION)).json()
    no_engine = await api.post(f"{SESSION}/resume")
    assert (no_engine.status_code, no_engine.json()["code"]) == (503, "no_engine")
    assert (await api.get(SESSION)).json() == shown

    world.start_engine()
    probe = (await api.get(f"{SESSION}/probe")).json()
    assert (probe["plan"], probe["tokens_loadable"]) == ("load", 96)
    resumed = (await api.post(f"{SESSION}/resume")).json()
    assert (resumed["outcome"], resumed["reason"], resumed["causes"]) == ("restored", "", [])
    answer = await turn(world, api, 120)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    shown = (await api.get(SESSION)).json()
    assert (shown["state"], shown["last_outcome"]) == ("active", "restored")
    snapshots = (await api.get(f"{SESSION}/snapshots")).json()["snapshots"]
    assert [one["generation"] for one in snapshots] == [1]
    events = (await api.get(f"{SESSION}/events?after=1")).json()["events"]
    assert [event["kind"] for event in events] == ["turn", "suspended", "resumed"]


async def test_refusals(world: World, api: httpx.AsyncClient, engine: FakeEngine) -> None:
    early = await api.post(f"{SESSION}/suspend")
    assert (early.status_code, early.json()["code"]) == (422, "nothing_to_suspend")
    await turn(world, api)
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    busy = await api.post(f"{SESSION}/suspend")
    assert (busy.status_code, busy.json()["code"]) == (409, "turn_in_flight")
    assert busy.json()["retryable"] is True
    engine.end_turn(DEFAULT_TENANT, AGENT)
    engine.faults.no_connector = True
    plain = await api.post(f"{SESSION}/suspend")
    assert (plain.status_code, plain.json()["code"]) == (503, "engine_without_connector")
    again = await api.post("/v1/sessions", json={"session_id": AGENT})
    assert (again.status_code, again.json()["code"]) == (409, "session_exists")


async def test_a_mismatch_shows_both_values(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await turn(world, api)
    await api.post(f"{SESSION}/suspend")
    world.kill_engine(engine)
    world.start_engine(fields={"weights_digest": "f" * 64})
    resumed = await api.post(f"{SESSION}/resume")
    assert resumed.status_code == 200
    body = resumed.json()
    assert (body["outcome"], body["reason"]) == ("recomputed", "weights_mismatch")
    (cause,) = body["causes"]
    assert (cause["stored"], cause["live"]) == ("a" * 64, "f" * 64)
    assert cause["sentence"]
    assert cause["hint"]


async def test_no_wait_is_an_operation(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await turn(world, api)
    engine.faults.hangs |= {"suspend", "commit"}
    started = await api.post(f"{SESSION}/suspend?wait=0")
    assert started.status_code == 202
    assert started.json()["status"] == "running"
    where = started.headers["location"]
    assert where == f"/v1/operations/{started.json()['operation_id']}"
    other = await api.post(f"{SESSION}/resume")
    assert (other.status_code, other.json()["code"]) == (409, "operation_in_progress")
    while (shown := (await api.get(where)).json())["status"] == "running":
        await asyncio.sleep(0.02)
    assert (shown["status"], shown["result"]["code"]) == ("failed", "deadline_exceeded")


async def test_a_key_repeats_nothing(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await turn(world, api)
    headers = {"Idempotency-Key": "once"}
    first = await api.post(f"{SESSION}/suspend", headers=headers)
    second = await api.post(f"{SESSION}/suspend", headers=headers)
    assert first.json() == second.json()
    wrong = await api.post(f"{SESSION}/resume", headers=headers)
    assert (wrong.status_code, wrong.json()["code"]) == (409, "idempotency_key_reused")
    assert sum(seen.op == "suspend" for seen in engine.seen) == 1
    made = [await api.post("/v1/sessions", json={}, headers={"Idempotency-Key": "k"}) for _ in "ab"]
    assert made[0].json() == made[1].json()


async def test_a_ticket_that_continues_token_for_token(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    asked = [{"role": "user", "content": "why"}]
    engine.replies.append(spell("because of it") + spell("\x02"))
    await world.turn(AGENT, render(asked))
    again = [*asked, {"role": "assistant", "content": "because of it"}]
    body = {"continue": {"messages": again, "tools": None}}

    ticket = (await api.post(f"{SESSION}/ticket", json=body)).json()

    told = ticket["continuation"]
    assert (told["faithful"], told["cause"]) == (True, None)
    ids = ticket["kv_transfer_params"]["prompt_token_ids"]
    assert len(ids) == told["head_tokens"] + len(encode("<|start|>assistant:"))
    again[0]["content"] = "how"
    ticket = (await api.post(f"{SESSION}/ticket", json=body)).json()
    assert ticket["kv_transfer_params"].keys() == {"sessiond_ticket"}
    assert ticket["continuation"]["faithful"] is False
    assert ticket["continuation"]["cause"]["reason"] == "not_faithful"
    assert (await api.post(f"{SESSION}/ticket", json={})).json()["continuation"] is None
    refused: list[dict[str, Any]] = [
        {"continue": {}},
        {"continue": {"messages": []}},
        {"continues": {}},
    ]
    for wrong in refused:
        assert (await api.post(f"{SESSION}/ticket", json=wrong)).status_code == 422


async def test_a_session_shows_where_its_newest_turn_took_its_tokens_from(
    world: World, api: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert (await api.get(SESSION)).json()["last_turn"] is None
    await turn(world, api)
    shown = (await api.get(SESSION)).json()
    assert shown["last_turn"]["engine_id"] == engine.info.engine_id
    assert shown["last_turn"]["computed_tokens"] == shown["last_turn"]["prompt_tokens"]
    assert (shown["last_turn"]["diverged_at_token"], shown["unkept"]) == (None, "")


@pytest.mark.usefixtures("engine")
async def test_patch(api: httpx.AsyncClient) -> None:
    assert (await api.patch(SESSION, json={"idle_timeout_s": 5})).json()["idle_timeout_s"] == 5
    shown = (await api.patch(SESSION, json={"pinned": True})).json()
    assert (shown["idle_timeout_s"], shown["pinned"]) == (5, True)
    assert (await api.patch(SESSION, json={"idle_timeout_s": None})).json()["pinned"] is True
    for wrong in (
        {"idle_timeout_s": -1},
        {"ttl_s": -1},
        {"ttl_s": True},
        {"pinned": None},
        {"model": "x"},
        {"idle_timeout_s": "x"},
    ):
        assert (await api.patch(SESSION, json=wrong)).status_code == 422
    assert (await api.patch("/v1/sessions/nobody", json={})).status_code == 404


@pytest.mark.usefixtures("engine")
async def test_delete(world: World, api: httpx.AsyncClient) -> None:
    await turn(world, api)
    await api.post(f"{SESSION}/suspend")
    deleted = await api.delete(SESSION)
    assert (deleted.status_code, deleted.json()["manifests"]) == (200, 1)
    assert (await api.get(SESSION)).status_code == 404
    assert (await api.post(f"{SESSION}/ticket")).status_code == 404
    assert (await api.get(f"{SESSION}/events")).json()["events"][-1]["kind"] == "deleted"
    assert (await api.delete(SESSION)).status_code == 200


async def test_list_filters_and_pages(api: httpx.AsyncClient) -> None:
    for name, pinned in (("a", True), ("b", False), ("c", True)):
        await api.post("/v1/sessions", json={"session_id": name, "pinned": pinned})
    page = (await api.get("/v1/sessions?limit=2")).json()
    assert [one["session_id"] for one in page["sessions"]] == ["a", "b"]
    page = (await api.get(f"/v1/sessions?after={page['next_after']}")).json()
    assert [one["session_id"] for one in page["sessions"]] == ["c"]
    assert page["next_after"] is None
    pinned = (await api.get("/v1/sessions?pinned=true")).json()["sessions"]
    assert [one["session_id"] for one in pinned] == ["a", "c"]
    assert (await api.get("/v1/sessions?has_snapshot=true")).json()["sessions"] == []


@pytest.mark.usefixtures("engine")
async def test_admin(world: World, api: httpx.AsyncClient) -> None:
    await turn(world, api)
    world.pass_time(301)
    swept = (await api.post("/v1/admin/sweep")).json()
    assert (swept["watched"], swept["due"], swept["suspended"], swept["failed"]) == (1, 1, 1, 0)
    tried = (await api.post("/v1/admin/purge", json={})).json()
    assert (tried["dry_run"], tried["matched"], tried["deleted"]) == (True, 1, 0)
    done = (await api.post("/v1/admin/purge", json={"dry_run": False})).json()
    assert (done["deleted"], done["session_ids"]) == (1, [AGENT])
    assert (await api.get(SESSION)).status_code == 404


async def test_engines(world: World, api: httpx.AsyncClient, engine: FakeEngine) -> None:
    world.start_stranger("plain")
    listed = (await api.get("/v1/engines")).json()
    assert [one["engine_id"] for one in listed["engines"]] == [engine.info.engine_id]
    (stranger,) = listed["strangers"]
    assert (stranger["url"], stranger["code"]) == ("http://plain", "engine_without_connector")
    shown = (await api.get(f"/v1/engines/{engine.info.engine_id}")).json()
    assert shown["fingerprint"]["weights_digest"] == "a" * 64


@pytest.mark.usefixtures("engine")
async def test_metrics_move_once_for_each_event(world: World, api: httpx.AsyncClient) -> None:

    async def samples() -> set[str]:
        lines = (await api.get("/metrics")).text.splitlines()
        return {line for line in lines if line.startswith("sessiond_operations_total")}

    assert await samples() == set()
    await turn(world, api)
    await api.post(f"{SESSION}/suspend")
    await api.post(f"{SESSION}/resume")
    assert await samples() == {
        'sessiond_operations_total{kind="suspend",outcome="complete",reason=""} 1.0',
        'sessiond_operations_total{kind="resume",outcome="warm",reason=""} 1.0',
    }
    assert "sessiond_live_engines 1.0" in (await api.get("/metrics")).text


async def test_not_ready_without_a_registry(world: World, api: httpx.AsyncClient) -> None:
    ready = {"status": "ready", "live_engines": 0, "sweeps_paused": False}
    assert (await api.get("/readyz")).json() == ready
    path = world.store.root.parent / "registry.db"
    world.registry.close()
    for file in path.parent.glob("registry.db*"):
        file.unlink()
    response = await api.get("/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "registry_unavailable")
    assert str(path.parent) not in response.text
    assert (await api.get("/healthz")).status_code == 200


async def test_an_event_id_beyond_the_database_is_refused(
    api: httpx.AsyncClient, world: World
) -> None:
    await world.create()
    unknown = await api.get(f"{SESSION}/events?after={2**63 - 1}")
    assert (unknown.status_code, unknown.json()["code"]) == (409, "events_reset")
    answer = await api.get(f"{SESSION}/events?after=99999999999999999999")
    assert answer.status_code == 422
