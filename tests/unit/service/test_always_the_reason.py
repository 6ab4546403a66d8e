"""What a session lacked is told everywhere in the same words: answer, trail, metrics, log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.service.turns import TurnPlan
from sessiond.testing.world import AGENT, World, problem, reasons, report, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


def other_weights(world: World) -> None:
    world.start_engine(fields={"weights_digest": "f" * 64})


def lost_files(world: World) -> None:
    for manifest in world.store.root.rglob("*.manifest"):
        manifest.unlink()
    world.start_engine()


def uncounted(world: World) -> None:
    world.start_engine().faults.uncounted_tokens = 1000


def small_ram(world: World) -> None:
    world.start_engine(ram_tier_chunks=1)


@pytest.fixture
async def suspended(world: World) -> World:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    return world


def counted(world: World, kind: str) -> dict[str, float]:
    """Return how often each reason was told of turns, or of operations of a kind."""
    families = text_string_to_metric_families(world.metrics.exposition(1).decode())
    causes = next(family for family in families if family.name == "sessiond_causes")
    samples = [one for one in causes.samples if one.name.endswith("_total")]
    by_reason = {one.labels["reason"]: one.value for one in samples if one.labels["kind"] == kind}
    return {reason: value for reason, value in by_reason.items() if value}


def logged(caplog: pytest.LogCaptureFixture, beginning: str) -> str:
    """Return the one line that begins so."""
    lines = [record.getMessage() for record in caplog.records]
    (line,) = [line for line in lines if line.startswith(beginning)]
    return line


@pytest.mark.parametrize(
    ("befalls", "reason"),
    [
        (other_weights, "weights_mismatch"),
        (lost_files, "snapshot_missing"),
        (uncounted, "not_confirmed"),
        (small_ram, "ram_tier_too_small"),
    ],
)
async def test_of_a_turn(
    suspended: World,
    caplog: pytest.LogCaptureFixture,
    befalls: Callable[[World], None],
    reason: str,
) -> None:
    befalls(suspended)
    before = counted(suspended, "turn")
    caplog.set_level(logging.INFO, "sessiond")
    answer = (await suspended.turn(AGENT, text(120)))["kv_transfer_params"]["sessiond"]
    assert reason in reasons(answer)
    view = await suspended.show()
    assert view.presence is not None
    assert view.presence.last_turn is not None
    assert [one.as_json() for one in view.presence.last_turn.causes] == answer["causes"]
    await suspended.services.catalogue.trail.note(view.session, view.presence)
    events = await suspended.services.catalogue.events(DEFAULT_TENANT, AGENT, 0, 100)
    assert events[-1].kind == "turn"
    assert events[-1].detail["causes"] == answer["causes"]
    assert counted(suspended, "turn") == {**before, reason: 1.0}
    assert f"{reason}: " in logged(caplog, f"turn of session {AGENT} of tenant default: ")


async def test_a_turn_that_lacks_nothing_tells_no_reason(
    suspended: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sessiond")
    await suspended.create(SessionId("new"))
    suspended.start_engine()
    for session_id in (AGENT, SessionId("new")):
        for length in (100, 120):
            answer = await suspended.turn(session_id, text(length))
            assert reasons(answer["kv_transfer_params"]["sessiond"]) == []
    await suspended.services.sweeper.sweep()
    assert counted(suspended, "turn") == {}
    assert not [one for one in caplog.records if "turn of session" in one.getMessage()]


async def test_of_a_turn_whose_kv_is_gone_from_an_engine_that_may_not_load(
    suspended: World,
) -> None:
    engine = suspended.start_engine(fields={"weights_digest": "f" * 64})
    await suspended.turn(AGENT, text(100))
    ticket = await suspended.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert ticket.plan is TurnPlan.WARM
    engine.evict(keep_tokens=0)
    answer = (await suspended.use(ticket, text(120)))["kv_transfer_params"]["sessiond"]
    assert reasons(answer) == ["weights_mismatch"]


async def test_of_a_resume(suspended: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sessiond")
    other_weights(suspended)
    told = report(await suspended.resume())
    (event,) = await suspended.services.catalogue.events(DEFAULT_TENANT, AGENT, 3, 100)
    assert event.detail["causes"] == told["causes"]
    assert counted(suspended, "resume") == {"weights_mismatch": 1.0}
    line = logged(caplog, f"resume of session {AGENT} of tenant default: recomputed in ")
    (cause,) = told["causes"]
    assert f"weights_mismatch: {cause['sentence'].rstrip('.')}" in line
    assert f'[stored "{cause["stored"]}", live "{"f" * 64}"]' in line


async def test_what_differs_and_does_not_matter_is_noted(
    suspended: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sessiond")
    suspended.start_engine(fields={"vllm_version": "0.32.1"})
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"], told["causes"]) == ("restored", "", [])
    assert [one["reason"] for one in told["noted"]] == ["vllm_release_mismatch"]
    assert told["noted"][0]["live"] == "0.32.1"
    assert counted(suspended, "resume") == {"vllm_release_mismatch": 1.0}
    assert "vllm_release_mismatch: " in logged(caplog, f"resume of session {AGENT}")


async def test_of_a_suspend(
    engine: FakeEngine, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sessiond")
    engine.evict(keep_tokens=50)
    told = report(await world.suspend())
    assert reasons(told) == ["kv_evicted"]
    line = logged(caplog, f"suspend of session {AGENT} of tenant default: partial in ")
    assert f"kv_evicted: {told['causes'][0]['sentence'].rstrip('.')}" in line


async def test_of_a_suspend_that_fails(
    engine: FakeEngine, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sessiond")
    engine.evict(keep_tokens=0)
    assert problem(await world.suspend()) == "nothing_to_suspend"
    line = logged(caplog, f"suspend of session {AGENT} of tenant default: failed, nothing_to_")
    assert "suspend; kv_evicted: " in line
