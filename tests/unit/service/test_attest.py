"""Attestation through the service, with an engine that has a real store behind it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import (
    AttestationRefusedError,
    DeadlineExceededError,
    EngineNotFoundError,
    EngineUnreachableError,
    IdentityPendingError,
    NothingToSuspendError,
    SessiondError,
    TierOffError,
)
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import EXPLANATIONS, Reason
from sessiond.domain.session import SessionState
from sessiond.service.limits import Limits
from sessiond.service.reports import problem_of
from sessiond.testing.world import AGENT, World, open_world, problem, report, text
from sessiond_cli.commands.engines_attest import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sessiond.service.attest import Attestation
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

HURRIED = Limits(attest_deadline_s=0.3, turn_settle_s=0.2, commit_settle_s=0.1, poll_s=0.01)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path, limits=HURRIED) as world:
        yield world


@pytest.fixture
def engine(world: World) -> FakeEngine:
    return world.start_engine()


async def attest(world: World, engine: FakeEngine) -> Attestation:
    engine_id = engine.info.engine_id
    return await world.services.attestations.attest(DEFAULT_TENANT, engine_id)


async def test_a_session_suspended_before_a_reset_is_restored_after_the_word(
    world: World, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    engine.reset()
    off = report(await world.resume())
    assert (off["outcome"], off["reason"], off["causes"][0]["detail"]) == (
        "recomputed",
        "tier_off",
        "the engine's caches were reset",
    )
    with caplog.at_level(logging.WARNING):
        done = await attest(world, engine)
    assert done.was_off == "the engine's caches were reset"
    assert not done.engine.tier_off
    assert f"attests the weights of engine {engine.info.engine_id}" in caplog.text
    on = report(await world.resume())
    assert (on["outcome"], on["disk_tokens"]) == ("restored", 96)


async def test_its_caches_are_reset_first(world: World, engine: FakeEngine) -> None:
    engine.reset()
    await world.create()
    await world.turn(AGENT, text(100))  # by whatever weights there are now
    await attest(world, engine)
    assert engine.info.resets == 2
    with pytest.raises(NothingToSuspendError):
        await world.suspend()


async def test_an_engine_whose_tier_is_on_is_left_alone(world: World, engine: FakeEngine) -> None:
    await world.create()
    await world.turn(AGENT, text(100))
    done = await attest(world, engine)
    assert (done.was_off, engine.info.resets) == ("", 0)
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 96


async def test_a_reset_that_must_wait_is_repeated(world: World, engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.unresettable = 3
    assert (await attest(world, engine)).was_off
    assert not engine.info.tier_off


def off_for_good(engine: FakeEngine) -> None:
    engine.update(tier_off="weights may change in place: sleep mode")


def never_reset(engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.unresettable = 1 << 30


def without_development_mode(engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.no_reset = True


def with_other_files(engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.changed_files = True


def asleep(engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.hangs.add("attest")


def aborting(engine: FakeEngine) -> None:
    engine.reset()
    engine.faults.aborts.add("attest")


def without_url(engine: FakeEngine) -> None:
    engine.reset()
    engine.update(url="")


@pytest.mark.parametrize(
    ("story", "kind", "words"),
    [
        (off_for_good, AttestationRefusedError, "off for good: weights may change in place"),
        (never_reset, AttestationRefusedError, "requests hold KV"),
        (without_development_mode, AttestationRefusedError, "A restart of the engine"),
        (with_other_files, AttestationRefusedError, "changed since the engine started: model"),
        (asleep, DeadlineExceededError, "may be paused or asleep"),
        (aborting, EngineUnreachableError, "aborted the request"),
        (without_url, EngineUnreachableError, "did not tell its URL"),
    ],
)
async def test_why_it_stays_off(
    world: World,
    engine: FakeEngine,
    story: Callable[[FakeEngine], None],
    kind: type[SessiondError],
    words: str,
) -> None:
    story(engine)
    with pytest.raises(kind, match=words):
        await attest(world, engine)
    assert engine.info.tier_off


async def test_one_whose_files_are_being_read_is_not_off_for_good(
    world: World, engine: FakeEngine
) -> None:
    engine.update(tier_off="16 GB", tier_off_reason="identity_pending")
    with pytest.raises(IdentityPendingError, match="16 GB") as refused:
        await attest(world, engine)
    assert refused.value.retryable


async def test_its_steps_have_one_deadline_together(tmp_path: Path) -> None:
    patient = Limits(attest_deadline_s=2.0, poll_s=0.01)
    async with open_world(tmp_path, limits=patient) as world:
        engine = world.start_engine()
        engine.reset()
        engine.faults.hangs.add("attest")
        engine.faults.slow_reset_s = 0.5
        with pytest.raises(DeadlineExceededError) as late:
            await attest(world, engine)
    waited_s = float(late.value.message.split("within ")[1].split(" s")[0])
    assert waited_s <= patient.attest_deadline_s - engine.faults.slow_reset_s


def test_the_cli_is_more_patient_than_the_daemon() -> None:
    assert Limits().attest_deadline_s + 10 < PATIENCE_S


async def test_an_engine_that_is_not_there(world: World, engine: FakeEngine) -> None:
    world.kill_engine(engine)
    with pytest.raises(EngineNotFoundError):
        await attest(world, engine)


async def test_a_suspend_says_why_it_cannot(world: World, engine: FakeEngine) -> None:
    await world.create()
    engine.update(tier_off="weights may change in place: development mode")
    with pytest.raises(SessiondError, match="development mode") as without_kv:
        await world.suspend()
    assert without_kv.value.code == "tier_off"
    await world.turn(AGENT, text(100))
    engine.faults.hangs |= {"suspend", "commit"}  # it may be asleep
    with pytest.raises(SessiondError, match="development mode") as with_kv:
        await world.suspend()
    assert with_kv.value.code == "tier_off"


@pytest.mark.parametrize(
    "reason", [Reason.TIER_OFF, Reason.IDENTITY_UNKNOWN, Reason.MOVER_FAILED, Reason.STORE_FAILED]
)
@pytest.mark.parametrize("with_kv", [False, True])
async def test_whatever_turned_the_tier_off_no_repeat_helps(
    world: World,
    engine: FakeEngine,
    reason: Reason,
    with_kv: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    await world.create()
    if with_kv:
        await world.turn(AGENT, text(100))
    engine.update(tier_off="what happened", tier_off_reason=reason.value)
    with pytest.raises(TierOffError, match="what happened") as refused:
        await world.suspend()
    told = problem_of(refused.value)
    assert (told["code"], told["retryable"]) == ("tier_off", False)
    assert told["hint"] == EXPLANATIONS[reason].hint


async def test_what_is_stored_already_needs_no_tier(world: World, engine: FakeEngine) -> None:
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    engine.update(tier_off="weights may change in place: development mode")
    assert report(await world.suspend())["rounds"] == 0


async def test_an_aborted_suspend_is_no_foreign_engine(world: World, engine: FakeEngine) -> None:
    await world.create()
    await world.turn(AGENT, text(100))
    engine.faults.aborts |= {"suspend", "commit"}
    assert problem(await world.suspend()) == "engine_unreachable"


async def test_kv_that_a_reset_took_is_not_in_the_engine(world: World, engine: FakeEngine) -> None:
    await world.create()
    await world.turn(AGENT, text(100))
    assert (await world.show()).state is SessionState.ACTIVE
    report(await world.suspend())
    report(await world.resume())
    engine.reset()
    view = await world.show()
    assert (view.state, view.presence) == (SessionState.SUSPENDED, None)
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, [cause.reason for cause in ticket.causes]) == ("recompute", ["tier_off"])
