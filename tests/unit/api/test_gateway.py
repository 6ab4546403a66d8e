"""The OpenAI-compatible routes, over real sockets on both sides."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette

from sessiond.api.gates import AuthGate, BodyGate
from sessiond.api.gateway import GatewayPolicy, gateway_routes
from sessiond.domain.errors import SessionNotFoundError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, TenantId
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.tickets import TicketOp
from sessiond.domain.turnoutcome import TurnOutcome
from sessiond.service.calls import Passage
from sessiond.service.enginework import PATIENCE_S
from sessiond.service.turnresults import TurnResults
from sessiond.service.turntrail import turn_json
from sessiond.testing import fake_tokenizer
from sessiond.testing.listening import bound, listening
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.types import ASGIApp

    from sessiond.domain.session import Event
    from sessiond.service.catalogue import Changes
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

TOKENS = {
    "alpha-token-0123456789": TenantId("alpha"),
    "beta-token-0123456789": TenantId("beta"),
}
ALPHA, BETA = ({"authorization": f"Bearer {token}"} for token in TOKENS)
OURS = {"x-session-id": AGENT}
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
_PATIENCE_S = 60.0


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    at, url = bound()
    async with (
        listening(app, at),
        httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S, trust_env=False) as client,
    ):
        yield client


@pytest.fixture
async def engine(world: World) -> AsyncIterator[FakeEngine]:
    async with world.listening_engine() as engine:
        yield engine


def light_app(
    world: World, tokens: Mapping[str, TenantId] | None = None, policy: GatewayPolicy | None = None
) -> Starlette:
    """Return the gateway with its gates, and without the routes that take long to make."""
    policy = policy or GatewayPolicy()
    app = Starlette(routes=gateway_routes(world.services.gateway, policy))
    app.add_middleware(BodyGate, gateway_bytes=policy.max_body_bytes)
    app.add_middleware(AuthGate, tokens=tokens or {}, operators=())
    return app


@pytest.fixture
async def gate(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a daemon without tokens."""
    async with served(light_app(world)) as client:
        yield client


def body_of(length: int = 100, **fields: object) -> dict[str, Any]:
    return {"model": "smol", "prompt": list(text(length)), "max_tokens": 8, **fields}


def sent_to(engine: FakeEngine, number: int = -1) -> dict[str, Any]:
    """Return a body as the engine got it."""
    body: dict[str, Any] = json.loads(engine.openai.arrived[number].body)
    return body


async def stream(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], **headers: str
) -> tuple[str, dict[str, Any]]:
    """Return what a stream has, and what its last comment tells."""
    answer = await client.post(path, json={**body, "stream": True}, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    said, mark, comment = answer.text.partition(": sessiond ")
    assert comment.endswith("\n\n") or not mark
    return said, json.loads(comment) if mark else {}


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


def turns_of(engine: FakeEngine) -> int:
    """Return how many turns an engine has seen."""
    return sum(seen.op != "heads" for seen in engine.seen)


async def events(world: World) -> list[Event]:
    return await world.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)


async def kinds(world: World) -> list[str]:
    return [event.kind for event in await events(world)]


async def is_unknown(world: World) -> bool:
    try:
        await world.show()
    except SessionNotFoundError:
        return True
    return False


# Turns


async def test_a_first_turn_makes_its_session(world: World, engine: FakeEngine) -> None:
    async with served(world.app()) as gate:
        first = await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
        again = await gate.post(COMPLETIONS, json=body_of(session_id=AGENT))

    assert [answer.status_code for answer in (first, again)] == [200, 200]
    told = {name: value for name, value in first.headers.items() if name.startswith("x-sess")}
    assert told == {
        "x-sessiond-plan": "recompute",
        "x-sessiond-reason": "no_snapshot",
        "x-sessiond-engine": engine.info.engine_id,
        "x-sessiond-outcome": "recomputed",
        "x-sessiond-tokens-total": "0",
        "x-sessiond-tokens-restored": "0",
        "x-sessiond-tokens-disk": "0",
    }
    assert again.headers["x-sessiond-plan"] == "warm"
    assert again.headers["x-sessiond-outcome"] == "warm"
    assert again.headers["x-sessiond-tokens-restored"] == "96"
    assert "x-sessiond-reason" not in again.headers
    assert again.json()["kv_transfer_params"] is None
    view = await world.show()
    assert (view.session.model, view.state.value) == ("smol", "active")
    assert view.presence is not None
    assert view.presence.head_tokens == 108

    async def both_are_told() -> bool:
        return (await kinds(world)).count("turn") == 2

    await until(both_are_told)


async def test_the_engine_gets_the_body_and_nothing_of_the_callers_connection(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    raw = (
        '{"model":"smol","prompt":[1,2],"max_tokens":8,"big":123456789012345678901234567890,'
        '"tiny":1e-400,"tools":[{"b":1,"a":2}],"kv_transfer_params":{"do_remote_prefill":true},'
        '"kv_transfer_params":{"prompt_token_ids":[9]},"vllm_xargs":{"session_id":"x"},'
        '"cache_salt":"mine","ec_transfer_params":{},"unknown":"\\ud83d"}'
    )
    headers = {
        **OURS,
        "content-type": "application/json",
        "authorization": "Bearer mine",
        "cookie": "a=b",
        "x-data-parallel-rank": "1",
        "x-request-id": "r-1",
        "x-vllm-priority": "-5",
    }
    await gate.post(COMPLETIONS, content=raw, headers=headers)

    (arrived,) = engine.openai.arrived
    kept = '"big":123456789012345678901234567890,"tiny":1e-400,"tools":[{"b":1,"a":2}],'
    assert kept.encode() in arrived.body
    assert b'"unknown":"\\ud83d"' in arrived.body
    body = json.loads(arrived.body)
    assert list(body["kv_transfer_params"]) == ["sessiond_ticket"]
    assert body["cache_salt"] == world.store.keys.cache_salt(DEFAULT_TENANT)
    assert not body.keys() & {"vllm_xargs", "ec_transfer_params", "session_id"}
    assert arrived.headers["x-request-id"] == "r-1"
    unwanted = {"authorization", "cookie", "x-data-parallel-rank", "x-vllm-priority", *OURS}
    assert not arrived.headers.keys() & unwanted


async def test_without_a_session_nothing_is_kept_and_tenants_stay_apart(
    world: World, engine: FakeEngine
) -> None:
    async with served(light_app(world, TOKENS)) as gate:
        attack = body_of(cache_salt="theirs", kv_transfer_params={"sessiond_ticket": "v1.x.y"})
        for who in (ALPHA, BETA, ALPHA):
            answer = await gate.post(COMPLETIONS, json=attack, headers=who)
            assert answer.status_code == 200
            assert answer.headers["x-sessiond-plan"] == "none"
            assert "x-sessiond-outcome" not in answer.headers
        refused = await gate.post(COMPLETIONS, json=attack)
    salts = [sent_to(engine, number)["cache_salt"] for number in range(3)]
    assert salts[0] == salts[2] != salts[1]
    assert "theirs" not in salts
    assert not any("kv_transfer_params" in sent_to(engine, number) for number in range(3))
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "unauthorized"


async def test_a_stream_passes_as_it_is_and_ends_with_what_became_of_the_turn(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    async with httpx.AsyncClient() as client:
        direct = await client.post(engine.info.url + COMPLETIONS, json=body_of(stream=True))
    said, told = await stream(gate, COMPLETIONS, body_of(), **OURS)
    assert said == direct.text
    assert said.endswith("data: [DONE]\n\n")
    turn_id = told.pop("turn_id")
    assert turn_id.startswith("op-")
    assert told == {
        "plan": "recompute",
        "outcome": "recomputed",
        "tokens_total": 0,
        "tokens_restored": 0,
        "tokens_disk": 0,
        "reason": "no_snapshot",
        "session_id": AGENT,
    }
    assert await last_turn_id(world) == turn_id
    unnamed, nothing = await stream(gate, COMPLETIONS, body_of())
    assert (unnamed, nothing) == (direct.text, {})


async def test_tokens_come_one_by_one(engine: FakeEngine, gate: httpx.AsyncClient) -> None:
    engine.openai.faults.hold = asyncio.Event()
    body = body_of(stream=True)
    async with gate.stream("POST", COMPLETIONS, json=body, headers=OURS) as answer:
        parts = answer.aiter_raw()
        first = await anext(parts)
        assert first.count(b"data:") == 1  # the second is not even made
        engine.openai.faults.hold.set()
        rest = b"".join([part async for part in parts])
    assert rest.count(b"data:") == 8


async def last_turn_id(world: World) -> str:
    presence = (await world.show()).presence
    assert presence is not None
    assert presence.last_turn is not None
    return presence.last_turn.turn_id


async def test_a_suspended_session_comes_back_by_its_turn_alone(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
    report(await world.suspend())
    world.kill_engine(engine)
    async with world.listening_engine() as fresh:
        longer = body_of(1000)
        longer["prompt"] += [7] * 100
        _, told = await stream(gate, COMPLETIONS, longer, **OURS)
        assert [told[name] for name in ("plan", "outcome", "reason")] == ["load", "restored", None]
        assert (told["tokens_total"], told["tokens_restored"], told["tokens_disk"]) == (
            1008,
            992,
            992,
        )
        assert [one.op for one in fresh.seen] == [TicketOp.TURN]


async def test_a_turn_counts_as_a_restore_until_its_first_token(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:

    def is_restoring() -> bool:
        return world.services.context.restores.are_running

    await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    report(await world.suspend())
    world.kill_engine(engine)
    async with world.listening_engine() as fresh:
        loads = fresh.faults.gates["turn"] = asyncio.Event()
        holds = fresh.openai.faults.hold = asyncio.Event()
        hung_up = asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=OURS))
        await until(lambda: turns_of(fresh) == 1)
        assert is_restoring()
        hung_up.cancel()
        await asyncio.gather(hung_up, return_exceptions=True)
        await until(lambda: not is_restoring())

        begun = asyncio.create_task(
            gate.send(
                gate.build_request("POST", COMPLETIONS, json=body_of(stream=True), headers=OURS),
                stream=True,
            )
        )
        await until(lambda: turns_of(fresh) == 2)
        assert is_restoring()
        loads.set()
        answer = await begun
        parts = answer.aiter_raw()
        assert b"data:" in await anext(parts)
        assert not is_restoring()  # though it goes on
        holds.set()
        assert b"load" in b"".join([part async for part in parts])  # what its comment tells
        await answer.aclose()


@asynccontextmanager
async def engine_that_computes(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> AsyncIterator[FakeEngine]:
    """Yield an engine that is known to compute for long what the session's next turn needs."""
    services = world.services
    await services.planner.calibrator.see(engine.info)
    engine.times.prefill_token_s = 1.0
    await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    changes: Changes = {"plan_policy": PlanPolicy.NEVER_LOAD}
    await services.catalogue.change(DEFAULT_TENANT, AGENT, changes)
    report(await world.suspend())
    await services.planner.calibrator.settle()
    world.kill_engine(engine)
    async with world.listening_engine() as fresh:
        yield fresh


def busy_s(world: World, engine: FakeEngine) -> float:
    """Return how long an engine computes, without tickets that nobody uses."""
    context = world.services.context
    return context.plans.work.busy_s(engine.info.engine_id, context.now() + PATIENCE_S)


async def test_a_turn_counts_as_the_engine_s_work_until_it_has_ended(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    async with engine_that_computes(world, engine, gate) as fresh:
        begins = fresh.faults.gates["turn"] = asyncio.Event()
        turn = asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=OURS))
        await until(lambda: turns_of(fresh) == 1)
        assert busy_s(world, fresh) > 0.0
        begins.set()
        await turn
        await world.services.sweeper.sweep()
        assert busy_s(world, fresh) == 0.0


async def test_a_turn_that_its_engine_does_not_take_is_none_of_its_work(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    async with engine_that_computes(world, engine, gate) as fresh:
        fresh.faults.http_errors = {"turn": 400}
        assert (await gate.post(COMPLETIONS, json=body_of(), headers=OURS)).status_code == 400
        assert busy_s(world, fresh) == 0.0
        at, url = bound()
        at.close()
        fresh.update(url=url)
        assert (await gate.post(COMPLETIONS, json=body_of(), headers=OURS)).status_code == 503
        assert busy_s(world, fresh) == 0.0


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_a_turn_is_on_its_way_until_its_engine_answers(
    world: World,
    engine: FakeEngine,
    gate: httpx.AsyncClient,
    hangs_up: bool,  # noqa: FBT001 - a parameter
) -> None:
    engine_id, on_the_way = engine.info.engine_id, world.services.context.on_the_way
    begins = engine.faults.gates["turn"] = asyncio.Event()
    turn = asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=OURS))
    await until(lambda: on_the_way.is_any(engine_id))
    if hangs_up:
        turn.cancel()
    else:
        begins.set()
    await asyncio.wait((turn,))
    await until(lambda: not on_the_way.is_any(engine_id))


async def test_two_first_turns_at_once_both_succeed(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.faults.gates["turn"] = asyncio.Event()
    posts = [
        asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=OURS)) for _ in range(4)
    ]
    await until(lambda: turns_of(engine) == 4)
    engine.faults.gates["turn"].set()
    answers = await asyncio.gather(*posts)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (await kinds(world)).count("created") == 1


async def test_turns_that_run_at_once_never_get_each_others_outcome(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    """The engine's record has the newest one only: of the others nothing is proven."""
    await gate.post(COMPLETIONS, json=body_of(100), headers=OURS)
    engine.openai.faults.hold = asyncio.Event()  # they have ended, and their streams have not
    turns = [
        asyncio.create_task(stream(gate, COMPLETIONS, body_of(length), **OURS))
        for length in (100, 200, 300)
    ]
    await until(lambda: turns_of(engine) == 4)
    engine.openai.faults.hold.set()
    told = [comment for _, comment in await asyncio.gather(*turns)]
    assert len({one["turn_id"] for one in told}) == 3
    known = [one for one in told if one["outcome"] != "unknown"]
    assert len(known) == 1
    assert await last_turn_id(world) == known[0]["turn_id"]
    assert all(one["tokens_restored"] is None for one in told if one not in known)


async def test_an_answer_that_says_nothing_of_kv_is_looked_up(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.openai.silent = True  # as after a stop string
    answer = await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    assert answer.headers["x-sessiond-outcome"] == "recomputed"


async def test_what_was_not_kept_is_unknown_with_its_reason(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.faults.no_connector = True
    answer = await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    assert answer.headers["x-sessiond-outcome"] == "unknown"
    assert "x-sessiond-tokens-total" not in answer.headers


async def test_a_chat_is_continued_token_for_token_where_that_is_asked_for(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    messages = [{"role": "user", "content": "tell me something long " * 20}]
    reply = "well then"
    engine.replies.append(fake_tokenizer.spell(reply) + fake_tokenizer.encode("<|end|>"))
    chat = {"model": "smol", "messages": messages}
    first = await gate.post(CHAT, json=chat, headers=OURS)
    assert "x-sessiond-continue" not in first.headers
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "go on"}]

    asked = {**OURS, "x-sessiond-continue": "1"}
    second = await gate.post(CHAT, json=chat, headers=asked)
    assert second.headers["x-sessiond-continue"] == "continued"
    assert "prompt_token_ids" in sent_to(engine)["kv_transfer_params"]
    unfit = await gate.post(CHAT, json={**chat, "documents": [{"text": "x"}]}, headers=asked)
    assert unfit.headers["x-sessiond-continue"] == "not_faithful"
    assert "prompt_token_ids" not in sent_to(engine)["kv_transfer_params"]
    refused = await gate.post(CHAT, json=chat, headers={**OURS, "x-sessiond-continue": "yes"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_input")


async def test_nobody_waits_for_a_record_that_cannot_come_any_more(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    """The engine's record of the session is of another engine's time, or a later turn's."""
    limits = replace(world.services.context.limits, turn_settle_s=_PATIENCE_S / 2)
    patient = replace(world.services.context, limits=limits)
    results = TurnResults(patient, world.services.catalogue)
    await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)

    begun_long_ago = Passage(ticket.engine, ticket, begun_s=monotonic() - _PATIENCE_S)
    async with asyncio.timeout(_PATIENCE_S / 4):
        assert await results.recorded(begun_long_ago) == TurnOutcome()

    engine.begin_turn(DEFAULT_TENANT, AGENT)  # so it may be this one
    waiting = asyncio.create_task(results.recorded(Passage(ticket.engine, ticket)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    engine.begin_turn(DEFAULT_TENANT, AGENT)
    await world.turn(AGENT, text(200))
    async with asyncio.timeout(_PATIENCE_S / 4):
        assert await waiting == TurnOutcome()


async def test_a_turn_is_in_the_trail_once_however_it_is_told(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    for streamed in (False, True, False):
        await gate.post(COMPLETIONS, json=body_of(stream=streamed), headers=OURS)
    await world.services.sweeper.sweep()
    (head,) = world.store.read_heads(DEFAULT_TENANT, AGENT)
    assert head.last_turn is not None
    told = [event.detail for event in await events(world) if event.kind == "turn"]
    assert len({one["turn_id"] for one in told}) == len(told) == 3
    from_head = turn_json(engine.info.engine_id, head.last_turn)
    assert {name: told[-1][name] for name in from_head} == from_head


# Sessions that come and go


async def test_a_deleted_session_begins_anew(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
    await world.suspend()
    await world.delete()
    engine.evict()
    answer = await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
    assert answer.status_code == 200
    assert answer.headers["x-sessiond-outcome"] == "recomputed"
    assert (await world.show()).session.snapshot is None


async def test_a_turn_during_a_suspend_is_served(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    engine.faults.gates["commit"] = asyncio.Event()
    suspending = asyncio.create_task(world.suspend())
    await until(lambda: any(one.op == "commit" for one in engine.seen))
    answer = await gate.post(COMPLETIONS, json=body_of(200), headers=OURS)
    assert answer.status_code == 200
    engine.faults.gates["commit"].set()
    report(await suspending)


# Engines that fail


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_engines_errors_pass_as_they_are(
    engine: FakeEngine, gate: httpx.AsyncClient, *, streamed: bool
) -> None:
    engine.faults.http_errors = {"turn": 503, "": 503}
    async with httpx.AsyncClient() as client:
        direct = await client.post(engine.info.url + COMPLETIONS, json=body_of())
    answer = await gate.post(COMPLETIONS, json=body_of(stream=streamed), headers=OURS)
    assert answer.status_code == direct.status_code == 503
    assert answer.text.replace("/turn.log", "/.log") == direct.text
    assert answer.headers["x-sessiond-plan"] == "recompute"
    assert "x-should-retry" not in answer.headers


async def test_no_engine_is_an_error_that_both_kinds_of_clients_can_read(
    world: World, gate: httpx.AsyncClient
) -> None:
    for headers in (OURS, {}):
        answer = await gate.post(COMPLETIONS, json=body_of(), headers=headers)
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-should-retry"] == "true"
        told = answer.json()
        assert told["error"]["code"] == told["code"] == "no_engine"
        assert told["error"]["type"] == "sessiond_error"
        assert told["hint"] in told["error"]["message"]
    assert await is_unknown(world)


async def test_engines_that_cannot_be_reached_are_tried_once_and_then_another(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    for host in ("silent", "mute"):
        at, url = bound()
        at.close()
        world.start_engine(host).update(url=url)
    world.start_engine("untold").update(url="")
    for headers in (OURS, {}, OURS):
        answer = await gate.post(COMPLETIONS, json=body_of(), headers=headers)
        assert answer.status_code == 200
        assert answer.headers["x-sessiond-engine"] == engine.info.engine_id
    world.kill_engine(engine)
    answer = await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_unreachable")


async def test_an_engine_that_dies_before_its_answer_is_lost(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.faults.gates["turn"] = asyncio.Event()
    turn = asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=OURS))
    await until(lambda: turns_of(engine) == 1)
    engine.openai.cut()
    answer = await turn
    engine.faults.gates["turn"].set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_lost")
    assert answer.headers["x-should-retry"] == "true"
    assert "turn_broken" in await kinds(world)


async def test_a_stream_that_breaks_looks_broken_and_leaves_a_trace(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.openai.faults.breaks_after = 3
    got: list[bytes] = []

    async def read() -> None:
        body = body_of(stream=True)
        async with gate.stream("POST", COMPLETIONS, json=body, headers=OURS) as answer:
            got.extend([part async for part in answer.aiter_raw()])

    with pytest.raises(httpx.RemoteProtocolError):
        await read()
    assert b"sessiond" not in b"".join(got)

    async def is_told() -> bool:
        return "turn_broken" in await kinds(world)

    await until(is_told)
    (detail,) = (one.detail for one in await events(world) if one.kind == "turn_broken")
    assert (detail["engine_id"], detail["code"]) == (engine.info.engine_id, "engine_lost")


async def test_a_client_that_hangs_up_ends_its_stream_in_the_engine(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.openai.faults.hold = asyncio.Event()
    body = body_of(stream=True)
    async with gate.stream("POST", COMPLETIONS, json=body, headers=OURS) as answer:
        await anext(answer.aiter_raw())
    await until(lambda: engine.openai.hung_up == 1)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_hangs_up_before_any_answer_ends_its_request(
    engine: FakeEngine, gate: httpx.AsyncClient, *, streamed: bool
) -> None:
    engine.faults.hangs = {"turn"}
    turn = asyncio.create_task(gate.post(COMPLETIONS, json=body_of(stream=streamed), headers=OURS))
    await until(lambda: turns_of(engine) == 1)
    turn.cancel()
    await until(lambda: engine.aborted == ["turn"])


# Several engines


async def test_a_session_goes_where_its_kv_is_and_else_to_who_can_read_it(world: World) -> None:
    async with AsyncExitStack() as running:
        gate = await running.enter_async_context(served(light_app(world)))
        first = await running.enter_async_context(world.listening_engine())
        await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
        await world.suspend()
        alike = await running.enter_async_context(world.listening_engine())
        other = {"weights_digest": "others"}
        await running.enter_async_context(world.listening_engine(fields=other))

        async def engine_of_turn() -> str:
            answer = await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
            return str(answer.headers["x-sessiond-engine"])

        assert await engine_of_turn() == first.info.engine_id
        world.kill_engine(first)
        assert await engine_of_turn() == alike.info.engine_id


async def test_a_session_without_kv_goes_to_the_engine_with_the_least_to_do(world: World) -> None:
    async with AsyncExitStack() as running:
        gate = await running.enter_async_context(served(light_app(world)))
        engines = [await running.enter_async_context(world.listening_engine()) for _ in range(3)]
        hold = asyncio.Event()
        for engine in engines:
            engine.faults.gates["turn"] = hold
        turns = []
        for number in range(6):
            headers = {"x-session-id": f"agent-{number}"}
            turns.append(
                asyncio.create_task(gate.post(COMPLETIONS, json=body_of(), headers=headers))
            )
            await until(lambda: sum(len(one.seen) for one in engines) == len(turns))
        assert [len(engine.seen) for engine in engines] == [2, 2, 2]
        hold.set()
        await asyncio.gather(*turns)


@pytest.mark.usefixtures("engine")
async def test_models_are_those_of_all_engines(world: World) -> None:
    async with world.listening_engine() as other, served(light_app(world)) as gate:
        other.update(model="large")
        answer = await gate.get("/v1/models")
        assert {one["id"] for one in answer.json()["data"]} == {"smol", "large"}
        silent = world.start_engine("silent")
        silent.update(model="quiet", url="http://127.0.0.1:1")
        listed = {one["id"]: one for one in (await gate.get("/v1/models")).json()["data"]}
        assert listed.keys() == {"smol", "large", "quiet"}
        assert listed["quiet"]["object"] == "model"


async def test_a_model_that_nobody_knows_is_the_engines_own_error(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    for headers in (OURS, {}):
        answer = await gate.post(COMPLETIONS, json=body_of(model="typo"), headers=headers)
        assert answer.status_code == 404
        assert answer.json() == {"error": {"message": "No model 'typo'."}}
    assert await is_unknown(world)  # a typo makes no session
    await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    engine.update(model="large")
    gone = await gate.post(COMPLETIONS, json=body_of(), headers=OURS)
    assert (gone.status_code, gone.json()["code"]) == (503, "no_engine")


async def test_a_model_that_got_another_name_is_named_so_for_the_engine(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
    await world.suspend()
    engine.update(model="renamed")
    answer = await gate.post(COMPLETIONS, json=body_of(1000), headers=OURS)
    assert answer.status_code == 200
    assert sent_to(engine)["model"] == "renamed"
    nameless = body_of(1000)
    del nameless["model"]
    await gate.post(COMPLETIONS, json=nameless, headers=OURS)
    assert sent_to(engine)["model"] == "renamed"


# Responses


def response_body(**fields: object) -> dict[str, Any]:
    return {"model": "smol", "input": "tell me something", **fields}


async def test_a_response_goes_on_in_the_engine_that_remembers_it(
    world: World, engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    engine.openai.stores = True
    first = (await gate.post(RESPONSES, json=response_body(), headers=OURS)).json()["id"]
    async with world.listening_engine():  # a newer one would be chosen
        following = response_body(previous_response_id=first)
        answer = await gate.post(RESPONSES, json=following)
        assert answer.status_code == 200
        assert answer.headers["x-sessiond-engine"] == engine.info.engine_id
        assert answer.json()["id"] != first
        shown = await gate.get(f"{RESPONSES}/{first}?stream=false")
        assert (shown.status_code, shown.json()["id"]) == (200, first)
        assert engine.openai.arrived[-1].path == f"{RESPONSES}/{first}?stream=false"
        assert (await gate.post(f"{RESPONSES}/{first}/cancel")).status_code == 200

        world.kill_engine(engine)
        for lost in (
            await gate.post(RESPONSES, json=following, headers=OURS),
            await gate.get(f"{RESPONSES}/{first}"),
        ):
            assert (lost.status_code, lost.json()["error"]["code"]) == (404, "response_lost")
            assert "input" in lost.json()["hint"]


@pytest.mark.usefixtures("engine")
async def test_an_engine_that_does_not_store_says_so_itself(gate: httpx.AsyncClient) -> None:
    first = (await gate.post(RESPONSES, json=response_body(), headers=OURS)).json()["id"]
    for named in (first, "resp_of_a_direct_call"):
        answer = await gate.post(RESPONSES, json=response_body(previous_response_id=named))
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_response_is_its_tenants(world: World, engine: FakeEngine) -> None:
    engine.openai.stores = True
    async with served(light_app(world, TOKENS)) as gate:
        wish = response_body(request_id="resp_of_my_choice")
        mine = (await gate.post(RESPONSES, json=wish, headers=ALPHA)).json()["id"]
        assert mine != "resp_of_my_choice"
        assert (await gate.get(f"{RESPONSES}/{mine}", headers=ALPHA)).status_code == 200
        stolen = response_body(previous_response_id=mine)
        for refused in (
            await gate.get(f"{RESPONSES}/{mine}", headers=BETA),
            await gate.post(f"{RESPONSES}/{mine}/cancel", headers=BETA),
            await gate.post(RESPONSES, json=stolen, headers=BETA),
            await gate.get(f"{RESPONSES}/resp_of_my_choice", headers=ALPHA),
        ):
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")


@pytest.mark.usefixtures("engine")
async def test_a_streamed_response_passes_and_tells_its_outcome(gate: httpx.AsyncClient) -> None:
    said, told = await stream(gate, RESPONSES, response_body(), **OURS)
    assert said.startswith("event: response.created\n")
    assert said.rstrip().splitlines()[-2] == "event: response.completed"
    assert told["outcome"] == "recomputed"


# Bad input


@pytest.mark.parametrize("wrong", ["", "a/b", "x" * 65, "x" * 5000, "a b", "-a", "ä"])
async def test_a_malformed_session_id_is_refused(
    engine: FakeEngine, gate: httpx.AsyncClient, wrong: str
) -> None:
    headers = {b"x-session-id": wrong.encode()}
    answer = await gate.post(COMPLETIONS, json=body_of(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_session_id")
    assert engine.seen == []


async def test_two_session_ids_are_refused(engine: FakeEngine, gate: httpx.AsyncClient) -> None:
    twice = [("x-session-id", "a"), ("X-Session-Id", "a")]
    answer = await gate.post(COMPLETIONS, json=body_of(), headers=twice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_session_id")
    other = await gate.post(COMPLETIONS, json=body_of(session_id="b"), headers=OURS)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "invalid_input")
    assert engine.seen == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not json", b"[1]", b'"x"', b"null", b'{"a":', gzip.compress(b'{"model":"smol"}')],
)
async def test_what_is_no_json_object_is_refused(
    engine: FakeEngine, gate: httpx.AsyncClient, content: bytes
) -> None:
    answer = await gate.post(COMPLETIONS, content=content, headers=OURS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_input")
    assert engine.openai.arrived == []


async def test_a_compressed_body_is_refused_as_such(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    packed = gzip.compress(json.dumps(body_of()).encode())
    answer = await gate.post(COMPLETIONS, content=packed, headers={"content-encoding": "gzip"})
    assert answer.status_code == 422
    assert "compressed" in answer.json()["detail"]
    assert engine.openai.arrived == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_other_methods_are_not_allowed(gate: httpx.AsyncClient, method: str) -> None:
    answer = await gate.request(method, CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_body_may_be_larger_here_than_elsewhere(world: World, engine: FakeEngine) -> None:
    policy = GatewayPolicy(max_body_bytes=10 << 20)
    image = "x" * (9 << 20)
    async with served(light_app(world, policy=policy)) as gate:
        assert (await gate.post(COMPLETIONS, json=body_of(image=image))).status_code == 200
        assert sent_to(engine)["image"] == image
        larger = await gate.post(COMPLETIONS, json=body_of(image="x" * (11 << 20)))
        assert (larger.status_code, larger.json()["error"]["code"]) == (413, "body_too_large")
        assert "10 MiB" in larger.json()["detail"]
        assert (await gate.post("/v1/sessions", json=[image])).status_code == 413


async def test_a_large_body_is_read_beside_other_calls(
    engine: FakeEngine, gate: httpx.AsyncClient
) -> None:
    image = "x" * (1 << 20)
    assert (await gate.post(COMPLETIONS, json=body_of(image=image))).status_code == 200
    assert sent_to(engine)["image"] == image
    broken = await gate.post(COMPLETIONS, content=json.dumps(body_of(image=image))[:-1])
    assert (broken.status_code, broken.json()["error"]["code"]) == (422, "invalid_input")


async def test_turns_pass_the_gates_of_the_whole_application(
    world: World, engine: FakeEngine
) -> None:
    policy = GatewayPolicy(max_body_bytes=1 << 20)
    async with served(world.app(TOKENS, policy)) as gate:
        assert (await gate.post(COMPLETIONS, json=body_of())).status_code == 401
        larger = body_of(image="x" * (2 << 20))
        refused = await gate.post(COMPLETIONS, json=larger, headers=ALPHA)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        assert engine.openai.arrived == []
        assert (await gate.get(COMPLETIONS, headers=ALPHA)).status_code == 405
        assert (await gate.post(COMPLETIONS, json=body_of(), headers=BETA)).status_code == 200
    assert engine.seen[-1].cache_salt == world.store.keys.cache_salt(TOKENS[tuple(TOKENS)[1]])


async def test_a_cache_key_names_the_session_where_that_is_configured(
    world: World, engine: FakeEngine
) -> None:
    async with served(light_app(world, policy=GatewayPolicy(by_cache_key=True))) as gate:
        answer = await gate.post(COMPLETIONS, json=body_of(prompt_cache_key="agent-9"))
        assert answer.headers["x-sessiond-plan"] == "recompute"
        assert (await world.show(SessionId("agent-9"))).session.model == "smol"
        assert sent_to(engine)["prompt_cache_key"] == "agent-9"
