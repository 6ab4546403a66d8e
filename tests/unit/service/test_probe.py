"""The look ahead: on the engine that would serve, on any other, and without a trace."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sessiond.domain.engines import ServedAdapter
from sessiond.domain.errors import EngineNotFoundError, NoEngineError, SessionNotFoundError
from sessiond.domain.fingerprint import FieldClass
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.testing.world import AGENT, World, problem, report, text

if TYPE_CHECKING:
    from pathlib import Path

    from sessiond.service.probe import Probe
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def suspended(world: World) -> FakeEngine:
    """Return the engine in which a session with a snapshot of 96 tokens was."""
    engine = world.start_engine()
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    return engine


async def probe(world: World, engine: FakeEngine | None = None) -> Probe:
    engine_id = engine.info.engine_id if engine else ""
    return await world.services.prober.probe(DEFAULT_TENANT, AGENT, engine_id)


async def test_before_and_after_the_first_suspend(world: World) -> None:
    world.start_engine()
    await world.create()
    cold = await probe(world)
    assert (cold.would_resume, cold.plan, cold.generation) == (False, "recompute", 0)
    assert [cause.reason for cause in cold.causes] == ["no_snapshot"]
    await world.turn(AGENT, text(100))
    warm = await probe(world)
    assert (warm.would_resume, warm.plan, warm.causes) == (True, "warm", ())


async def test_on_another_engine_than_the_one_that_would_serve(
    world: World, suspended: FakeEngine
) -> None:
    other = world.start_engine("other", fields={"weights_digest": "f" * 64, "torch_version": "3"})
    assert (await probe(world, suspended)).plan == "warm"
    there = await probe(world, other)
    assert there.engine == other.info
    assert (there.would_resume, there.plan) == (False, "recompute")
    assert (there.tokens_total, there.tokens_restorable, there.tokens_loadable) == (108, 96, 0)
    assert [(m.field, m.field_class) for m in there.mismatches] == [
        ("weights_digest", FieldClass.BYTES),
        ("torch_version", FieldClass.ADVISORY),
    ]
    assert [cause.reason for cause in there.causes] == ["weights_mismatch"]
    assert (await probe(world)).engine == suspended.info


@pytest.mark.parametrize(
    ("fields", "loadable", "resumes"),
    [
        ({}, 96, True),
        ({"kv_dtype": "float16"}, 0, False),
        ({"tokenizer_digest": "e" * 64}, 96, False),  # only the next turn's own tokens decide
        ({"vllm_version": "0.32.1"}, 96, True),
    ],
)
async def test_each_class_of_field(
    world: World,
    suspended: FakeEngine,
    fields: dict[str, str],
    loadable: int,
    resumes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    world.kill_engine(suspended)
    world.start_engine(fields=fields)
    found = await probe(world)
    assert (found.tokens_loadable, found.would_resume) == (loadable, resumes)
    assert [mismatch.field for mismatch in found.mismatches] == list(fields)
    told = report(await world.resume())
    assert (told["tokens_restored"] > 0) is resumes


async def test_an_engine_whose_tier_is_off(world: World, suspended: FakeEngine) -> None:
    suspended.reset()
    found = await probe(world)
    assert (found.would_resume, found.tokens_loadable) == (False, 0)
    (cause,) = found.causes
    assert (cause.reason, cause.detail) == ("tier_off", "the engine's caches were reset")


async def test_an_adapter_that_has_another_name_there(world: World) -> None:
    poet = ServedAdapter("poet", digest="p" * 64)
    engine = world.start_engine()
    engine.update(adapters=(poet,))
    await world.create(model="poet")
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    other = world.start_engine("other")
    other.update(adapters=(replace(poet, name="bard"),))
    there = await probe(world, other)
    assert (there.model, there.would_resume, there.causes) == ("bard", True, ())
    world.kill_engine(engine)
    assert await probe(world) == there


async def test_an_engine_that_is_taking_its_fingerprint(
    world: World, suspended: FakeEngine
) -> None:
    suspended.update(tier_off="16 GB", tier_off_reason="identity_pending")
    found = await probe(world)
    assert (found.plan, found.would_resume) == ("warm", False)
    assert problem(await world.resume()) == "identity_pending"
    suspended.update(tier_off="", tier_off_reason="")
    assert (await probe(world)).would_resume


async def test_a_new_session_is_told_that_nothing_will_be_kept(world: World) -> None:
    engine = world.start_engine()
    engine.update(tier_off="sleep mode", tier_off_reason="tier_off")
    await world.create()
    cold = await probe(world)
    assert [cause.reason for cause in cold.causes] == ["no_snapshot", "tier_off"]
    await world.turn(AGENT, text(100))
    warm = await probe(world)
    assert (warm.plan, [cause.detail for cause in warm.causes]) == ("warm", ["sleep mode"])


async def test_what_is_not_there(world: World) -> None:
    await world.create()
    with pytest.raises(NoEngineError):
        await probe(world)
    world.start_engine()
    with pytest.raises(EngineNotFoundError):
        await world.services.prober.probe(DEFAULT_TENANT, AGENT, "another")
    with pytest.raises(SessionNotFoundError):
        await world.services.prober.probe(DEFAULT_TENANT, SessionId("nobody"))


def everything(folder: Path) -> dict[str, Any]:
    """Return all rows of the registry, and what the file system says of the store."""
    with closing(sqlite3.connect(folder / "registry.db")) as database:
        rows = list(database.iterdump())
    stats = {path: path.stat() for path in (folder / "store").rglob("*")}
    files = {str(path): (at.st_ino, at.st_size, at.st_mtime_ns) for path, at in stats.items()}
    return {"rows": rows, **files}


async def test_it_changes_nothing(world: World, suspended: FakeEngine, tmp_path: Path) -> None:
    # Committed, but not recorded: any other call would record it.
    newest = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    world.store.commit_manifest(replace(newest, generation=2))
    other = world.start_engine("other", fields={"weights_digest": "f" * 64})
    before, seen = everything(tmp_path), [*suspended.seen, *other.seen]
    watched = world.services.context.watchlist.keys()
    for engine in (None, suspended, other):
        assert (await probe(world, engine)).generation == 2
    assert everything(tmp_path) == before
    assert [*suspended.seen, *other.seen] == seen
    assert world.services.context.watchlist.keys() == watched
    await world.show()
    assert everything(tmp_path) != before
