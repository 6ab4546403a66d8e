from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import EngineWithoutConnectorError, NoEngineError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.reasons import Reason
from sessiond.domain.session import SessionState
from sessiond.service.turns import TurnPlan
from sessiond.testing.holds import Hold
from sessiond.testing.values import a_session
from sessiond.testing.world import (
    AGENT,
    PATIENT,
    World,
    open_world,
    problem,
    reasons,
    report,
    text,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def suspended(world: World) -> World:
    """A session with a snapshot of 96 tokens, and no engine."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    return world


def asked_tokens(engine: FakeEngine) -> list[int]:
    return [seen.prompt_tokens - 1 for seen in engine.seen if seen.op == "resume"]


def flip_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def manifests(world: World) -> list[Path]:
    return sorted(world.store.root.rglob("*.manifest"))


async def test_warm_kv_needs_no_disk(world: World) -> None:
    world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    told = report(await world.resume())
    assert told["outcome"] == "warm"
    assert told["tokens_restored"] == 96
    assert told["disk_tokens"] == 0
    assert (await world.show()).state is SessionState.ACTIVE
    report(await world.suspend())
    assert (await world.show()).state is SessionState.SUSPENDED


async def test_other_weights_load_nothing(suspended: World) -> None:
    engine = suspended.start_engine(fields={"weights_digest": "f" * 64})
    told = report(await suspended.resume())
    assert told["outcome"] == "recomputed"
    assert told["reason"] == "weights_mismatch"
    assert told["causes"][0]["stored"] == "a" * 64
    assert told["causes"][0]["live"] == "f" * 64
    assert engine.seen == []
    view = await suspended.show()
    assert view.state is SessionState.SUSPENDED
    assert view.session.last_outcome == "recomputed"
    assert view.session.last_reason == "weights_mismatch"


async def test_every_field_that_differs_is_named(suspended: World) -> None:
    suspended.start_engine(
        fields={"weights_digest": "f" * 64, "kv_dtype": "fp8", "vllm_version": "0.32.1"}
    )
    assert reasons(report(await suspended.resume())) == ["weights_mismatch", "kv_dtype_mismatch"]


async def test_another_template_prefetches_nothing(suspended: World) -> None:
    engine = suspended.start_engine(fields={"chat_template_digest": "e" * 64})
    told = report(await suspended.resume())
    assert told["outcome"] == "recomputed"
    assert told["reason"] == "chat_template_mismatch"
    assert told["causes"][0]["hint"].startswith("The next turn's own tokens decide")
    assert engine.seen == []
    ticket = await suspended.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert ticket.generation == 1


async def test_another_patch_version_loads(suspended: World) -> None:
    suspended.start_engine(fields={"vllm_version": "0.32.1"})
    told = report(await suspended.resume())
    assert told["outcome"] == "restored"
    assert told["causes"] == []


async def test_a_damaged_chunk_ends_the_restored_prefix(suspended: World) -> None:
    (segment,) = suspended.store.root.rglob("*.seg")
    record = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1).chunks[3]
    flip_byte(segment, record.offset_bytes + 100)
    engine = suspended.start_engine()
    told = report(await suspended.resume())
    assert told["outcome"] == "partial"
    assert told["reason"] == "snapshot_corrupt"
    assert told["tokens_restored"] == 48
    assert asked_tokens(engine) == [96, 48]
    assert engine.aborted == ["resume"]


async def test_what_was_recomputed_after_damage_is_stored_anew(suspended: World) -> None:
    (segment,) = suspended.store.root.rglob("*.seg")
    record = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1).chunks[3]
    flip_byte(segment, record.offset_bytes + 100)
    engine = suspended.start_engine()
    report(await suspended.resume())
    await suspended.turn(AGENT, text(100))
    stored = report(await suspended.suspend())
    assert (stored["rounds"], stored["snapshot"]["generation"]) == (1, 2)
    suspended.kill_engine(engine)
    suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["tokens_restored"]) == ("restored", 96)


async def test_a_damaged_first_chunk_restores_nothing(suspended: World) -> None:
    (segment,) = suspended.store.root.rglob("*.seg")
    record = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1).chunks[0]
    flip_byte(segment, record.offset_bytes)
    suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "snapshot_corrupt")


async def test_a_damaged_manifest_falls_back_to_the_one_before(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    await world.turn(AGENT, text(200))
    report(await world.suspend())
    world.kill_engine(engine)
    flip_byte(manifests(world)[-1], 200)
    world.start_engine()
    told = report(await world.resume())
    assert told["outcome"] == "partial"  # of what was stored last
    assert told["generation"] == 1
    assert told["tokens_restored"] == 96
    assert reasons(told) == ["snapshot_corrupt"]


async def test_an_older_snapshot_of_as_many_tokens_is_all(suspended: World) -> None:
    manifest = suspended.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    suspended.store.commit_manifest(replace(manifest, generation=2, parent_generation=1))
    await suspended.show()
    flip_byte(manifests(suspended)[-1], 200)
    suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["generation"]) == ("restored", 1)
    assert reasons(told) == ["snapshot_corrupt"]


async def test_no_readable_manifest(suspended: World) -> None:
    flip_byte(manifests(suspended)[0], 200)
    engine = suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "snapshot_corrupt")
    assert engine.seen == []
    ticket = await suspended.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert ticket.generation == 0
    assert ticket.plan == "recompute"


async def test_a_vanished_manifest(suspended: World) -> None:
    manifests(suspended)[0].unlink()
    suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "snapshot_missing")


async def test_a_session_without_snapshot(world: World) -> None:
    world.start_engine()
    await world.create()
    told = report(await world.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "no_snapshot")
    assert (await world.show()).state is SessionState.COLD


async def test_a_small_ram_tier_is_filled_by_growing_prefixes(suspended: World) -> None:
    engine = suspended.start_engine(ram_tier_chunks=2)
    told = report(await suspended.resume())
    assert told["outcome"] == "restored"
    assert told["disk_tokens"] == told["tokens_restored"] == 96
    assert told["causes"] == []
    assert asked_tokens(engine) == [96, 32, 96, 64, 96]


@pytest.mark.parametrize("lie", ["too few", "none"])
async def test_what_vllm_does_not_confirm_is_recomputed(suspended: World, lie: str) -> None:
    engine = suspended.start_engine()
    engine.faults.uncounted_tokens = 16 if lie == "too few" else 0
    engine.faults.no_details = lie == "none"
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "not_confirmed")
    assert told["tokens_restored"] == 0


async def test_an_engine_that_hangs_costs_no_more_than_the_deadline(suspended: World) -> None:
    engine = suspended.start_engine()
    engine.faults.hangs |= {"resume", "outcome"}
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "deadline")
    assert sorted(engine.aborted) == ["outcome", "resume"]


@pytest.mark.parametrize("op", ["resume", "outcome"])
async def test_a_refused_request_is_a_recompute(suspended: World, op: str) -> None:
    engine = suspended.start_engine()
    engine.faults.refusals[op] = Reason.TICKET_INVALID
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "ticket_invalid")


async def test_a_lost_answer_is_a_failure(suspended: World) -> None:
    engine = suspended.start_engine()
    engine.faults.lost_answers.add("resume")
    assert problem(await suspended.resume()) == "engine_unreachable"
    view = await suspended.show()
    assert view.state is SessionState.SUSPENDED
    assert view.session.last_outcome == "failed"
    assert view.session.last_reason == "engine_unreachable"


async def test_without_engine_the_session_stays_suspended(suspended: World) -> None:
    before = await suspended.show()
    with pytest.raises(NoEngineError):
        await suspended.resume()
    assert await suspended.show() == before


async def test_an_engine_with_another_model_is_no_engine(world: World) -> None:
    world.start_engine()
    await world.create(model="other")
    with pytest.raises(NoEngineError, match="'other'"):
        await world.resume()


async def test_plain_vllm_is_named_as_such(suspended: World) -> None:
    engine = suspended.start_engine()
    engine.faults.no_connector = True
    assert problem(await suspended.resume()) == "engine_without_connector"


async def test_a_configured_plain_vllm_is_named_as_such(tmp_path: Path) -> None:
    async with open_world(tmp_path, engine_urls=("http://plain",)) as world:
        world.start_stranger("plain")
        await world.create()
        with pytest.raises(EngineWithoutConnectorError):
            await world.resume()


async def test_an_engine_whose_tier_is_off_loads_nothing(suspended: World) -> None:
    engine = suspended.start_engine()
    engine.update(tier_off="weights were updated in place")
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "tier_off")
    assert engine.seen == []


async def test_an_engine_whose_tier_is_on_is_preferred(suspended: World) -> None:
    off = suspended.start_engine("one")
    off.update(tier_off="weights were updated in place")
    on = suspended.start_engine("two")
    told = report(await suspended.resume())
    assert told["engine_id"] == on.info.engine_id
    assert told["outcome"] == "restored"


async def test_an_engine_that_is_taking_its_fingerprint_is_asked_again_later(
    suspended: World,
) -> None:
    engine = suspended.start_engine()
    known = engine.info.fingerprint
    engine.update(fingerprint=Fingerprint({}), tier_off="16 GB", tier_off_reason="identity_pending")
    assert problem(await suspended.resume()) == "identity_pending"
    ticket = await suspended.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, ticket.generation) == ("recompute", 0)
    assert [cause.reason for cause in ticket.causes] == ["identity_pending"]
    engine.update(fingerprint=known, tier_off="", tier_off_reason="")
    assert report(await suspended.resume())["outcome"] == "restored"


async def test_an_engine_that_cannot_know_its_fingerprint_loads_nothing(suspended: World) -> None:
    engine = suspended.start_engine()
    engine.update(
        fingerprint=Fingerprint({}), tier_off="changed", tier_off_reason="identity_unknown"
    )
    told = report(await suspended.resume())
    assert (told["outcome"], told["reason"]) == ("recomputed", "identity_unknown")
    assert reasons(told) == ["identity_unknown"]  # and not that every field is missing
    assert engine.seen == []


async def test_a_snapshot_that_nobody_recorded_is_found(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.registry.mark_deleted(DEFAULT_TENANT, AGENT, 1.0)  # as if the database were lost
    world.registry.create_session(a_session(AGENT))
    world.kill_engine(engine)
    world.start_engine()
    assert report(await world.resume())["outcome"] == "restored"
    assert (await world.show()).session.snapshot is not None


async def test_what_is_committed_before_a_resume_holds_the_session_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(tmp_path, limits=PATIENT) as world:
        engine = world.start_engine()
        await world.create()
        await world.turn(AGENT, text(100))
        report(await world.suspend())
        await world.turn(AGENT, text(300))
        hold = Hold(world.registry, monkeypatch, "begin_operation")
        late = asyncio.create_task(world.services.lifecycle.resume(DEFAULT_TENANT, AGENT))
        await hold.arrived()
        report(await world.suspend())
        engine.evict()
        await hold.go_on()
        told = report(await world.ended(await late))
        assert (told["outcome"], told["generation"], told["tokens_restored"]) == (
            "restored",
            2,
            304,
        )


async def test_what_fits_is_restored_though_another_model_has_stored_something_since(
    suspended: World,
) -> None:
    """As with ``keep_generations`` of two and more, where sessions go to and fro."""
    other = suspended.start_engine(fields={"weights_digest": "f" * 64})
    await suspended.turn(AGENT, text(120))
    report(await suspended.suspend())
    suspended.kill_engine(other)
    suspended.start_engine()
    probe = await suspended.services.prober.probe(DEFAULT_TENANT, AGENT)
    assert (probe.tokens_restorable, [one.reason for one in probe.causes]) == (
        96,
        [Reason.WEIGHTS_MISMATCH],
    )
    ticket = await suspended.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert (ticket.plan, ticket.generation) == (TurnPlan.LOAD, 1)
    told = report(await suspended.resume())
    assert (told["outcome"], told["generation"], told["tokens_restored"]) == ("partial", 1, 96)
    assert reasons(told) == ["weights_mismatch"]
    again = report(await suspended.resume())
    assert (again["outcome"], again["generation"]) == ("partial", 1)
    await suspended.turn(AGENT, text(140))
    snapshot = report(await suspended.suspend())["snapshot"]
    assert (snapshot["generation"], snapshot["parent_generation"]) == (3, 1)
    assert snapshot["shared_bytes"] > snapshot["new_bytes"] > 0


async def test_an_older_snapshot_that_cannot_be_read_is_passed_over(suspended: World) -> None:
    other = suspended.start_engine(fields={"weights_digest": "f" * 64})
    await suspended.turn(AGENT, text(120))
    report(await suspended.suspend())
    suspended.kill_engine(other)
    (oldest,) = suspended.store.root.rglob("1.manifest")
    flip_byte(oldest, 20)
    suspended.start_engine()
    told = report(await suspended.resume())
    assert (told["outcome"], told["generation"]) == ("recomputed", 2)
    assert reasons(told) == ["weights_mismatch"]
