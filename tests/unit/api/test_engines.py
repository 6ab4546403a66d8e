"""Engines over HTTP: what they can keep, their tiers, and what metrics tell of all that."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.architectures import KV_KINDS
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.reasons import EXPLANATIONS, Reason
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    import httpx

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

GROUPS: dict[str, Any] = {
    "kv_groups": [{"kind": "FullAttentionSpec"}, {"kind": "TomorrowsSpec"}] * 2
}


@pytest.fixture
async def suspended(world: World) -> FakeEngine:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    return engine


async def test_what_kinds_of_kv_an_engine_has(world: World, api: httpx.AsyncClient) -> None:
    engine = world.start_engine(fields=GROUPS)
    engine.update(adapters=(ServedAdapter("sql", "ab" * 32, ""),))
    listed = (await api.get("/v1/engines")).json()
    shown = (await api.get(f"/v1/engines/{engine.info.engine_id}")).json()
    (first,) = listed["engines"]
    for told in (first, shown):
        kinds = [(kind["kind"], kind["support"]) for kind in told["kv_kinds"]]
        assert kinds == [("FullAttentionSpec", "golden"), ("TomorrowsSpec", "refused")]
        assert told["adapters"][0]["name"] == "sql"
    for told in (listed, shown):
        table = [(kind["kind"], kind["support"], kind["sentence"]) for kind in told["kv_support"]]
        assert table == [(known.kind, known.support, known.sentence) for known in KV_KINDS]


async def test_attest(world: World, api: httpx.AsyncClient) -> None:
    engine = world.start_engine()
    path = f"/v1/engines/{engine.info.engine_id}"
    engine.reset()
    off = (await api.get(path)).json()
    assert (off["tier_off"], off["attestable"], off["resets"]) == (
        "the engine's caches were reset",
        True,
        1,
    )
    done = await api.post(f"{path}/attest")
    assert (done.status_code, done.json()["was_off"]) == (200, off["tier_off"])
    on = (await api.get(path)).json()
    assert (on["tier_off"], on["attestable"], on["resets"]) == ("", False, 2)


async def test_attest_says_why_not(world: World, api: httpx.AsyncClient) -> None:
    engine = world.start_engine()
    engine.update(tier_off="weights may change in place: sleep mode")
    refused = await api.post(f"/v1/engines/{engine.info.engine_id}/attest")
    assert (refused.status_code, refused.json()["code"]) == (409, "attestation_refused")
    assert "sleep mode" in refused.json()["detail"]
    unknown = await api.post("/v1/engines/nobody/attest")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "engine_not_found")


async def test_nobody_attests_without_a_token(world: World, guarded: httpx.AsyncClient) -> None:
    engine = world.start_engine()
    engine.reset()
    answer = await guarded.post(f"/v1/engines/{engine.info.engine_id}/attest")
    assert (answer.status_code, engine.info.resets) == (401, 1)


@pytest.mark.parametrize(("token", "status"), [("alpha", 403), ("operator", 200)])
async def test_what_concerns_all_tenants_is_for_operators(
    world: World, guarded: httpx.AsyncClient, token: str, status: int
) -> None:
    engine = world.start_engine()
    engine.reset()
    headers = {"Authorization": f"Bearer {token}-token-0123456789"}
    attest = f"/v1/engines/{engine.info.engine_id}/attest"
    for path in (attest, "/v1/admin/sweep", "/v1/admin/gc"):
        answer = await guarded.post(path, headers=headers)
        assert answer.status_code == status, path
        assert status == 200 or answer.json()["code"] == "forbidden"
    assert engine.info.resets == (2 if status == 200 else 1)
    assert (await guarded.get("/v1/engines", headers=headers)).status_code == 200


@pytest.mark.parametrize("keeps", [True, False])
async def test_whether_replies_are_kept_is_told(
    world: World, api: httpx.AsyncClient, *, keeps: bool
) -> None:
    engine = world.start_engine()
    engine.update(keeps_replies=keeps)
    (listed,) = (await api.get("/v1/engines")).json()["engines"]
    shown = (await api.get(f"/v1/engines/{engine.info.engine_id}")).json()
    assert (listed["keeps_replies"], shown["keeps_replies"]) == (keeps, keeps)


async def test_a_probe_on_a_named_engine(
    world: World, api: httpx.AsyncClient, suspended: FakeEngine
) -> None:
    other = world.start_engine("other", fields={"weights_digest": "f" * 64})
    path = f"/v1/sessions/{AGENT}/probe"
    here = (await api.get(path)).json()
    assert (here["engine"]["engine_id"], here["would_resume"]) == (suspended.info.engine_id, True)
    there = (await api.get(path, params={"engine": other.info.engine_id})).json()
    assert (there["engine"]["engine_id"], there["would_resume"]) == (other.info.engine_id, False)
    assert there["mismatches"] == [
        {
            "field": "weights_digest",
            "field_class": "bytes",
            "reason": "weights_mismatch",
            "sentence": EXPLANATIONS[Reason.WEIGHTS_MISMATCH].sentence,
            "hint": EXPLANATIONS[Reason.WEIGHTS_MISMATCH].hint,
            "detail": "weights_digest",
            "stored": "a" * 64,
            "live": "f" * 64,
        }
    ]
    unknown = await api.get(path, params={"engine": "nobody"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "engine_not_found")


# Metrics


async def samples(api: httpx.AsyncClient, name: str) -> dict[str, float]:
    lines = (await api.get("/metrics")).text.splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith(name))
    return {labels.removeprefix(name): float(value) for labels, value in found}


async def test_every_reason_has_a_line_from_the_beginning(api: httpx.AsyncClient) -> None:
    assert await samples(api, "sessiond_causes_total") == {
        f'{{kind="{kind}",reason="{reason.value}"}}': 0.0
        for kind in ("suspend", "resume", "turn")
        for reason in Reason
    }


async def test_no_metric_tells_when_it_was_made(api: httpx.AsyncClient) -> None:
    assert "_created" not in (await api.get("/metrics")).text


async def test_a_restore_that_is_not_confirmed_moves_a_metric(
    world: World, api: httpx.AsyncClient, suspended: FakeEngine
) -> None:
    suspended.evict()
    suspended.faults.uncounted_tokens = 16  # one chunk fewer than was asked for
    told = report(await world.resume())
    assert (told["outcome"], told["reason"], told["tokens_restored"]) == (
        "recomputed",
        "not_confirmed",
        0,
    )
    causes = await samples(api, "sessiond_causes_total")
    assert {line for line, value in causes.items() if value} == {
        '{kind="resume",reason="not_confirmed"}'
    }
    ended = await samples(api, "sessiond_operations_total")
    assert ended['{kind="resume",outcome="recomputed",reason="not_confirmed"}'] == 1.0


async def test_tiers_that_are_off_are_counted(world: World, api: httpx.AsyncClient) -> None:
    assert await samples(api, "sessiond_engines_tier_off") == {"": 0.0}
    one, _ = world.start_engine("one"), world.start_engine("two")
    one.reset()
    assert await samples(api, "sessiond_engines_tier_off") == {"": 1.0}
    assert await samples(api, "sessiond_live_engines") == {"": 2.0}
    await api.post(f"/v1/engines/{one.info.engine_id}/attest")
    assert await samples(api, "sessiond_engines_tier_off") == {"": 0.0}


@pytest.mark.usefixtures("suspended")
async def test_labels_come_from_closed_lists(world: World, api: httpx.AsyncClient) -> None:
    (engine,) = world.started
    told_reasons = [*Reason][::7]  # each costs an operation
    for reason in told_reasons:
        engine.faults.refusals = {"resume": reason}
        await api.post(f"/v1/sessions/{AGENT}/resume")
    moved = await samples(api, "sessiond_causes_total")
    for reason in told_reasons:
        assert moved[f'{{kind="resume",reason="{reason.value}"}}'] == 1.0
    told = " ".join(await samples(api, "sessiond_operations_total"))
    assert set(re.findall(r'reason="([^"]*)"', told)) == {"", *told_reasons}
