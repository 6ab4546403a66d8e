"""Engines that store KV with loss, as the service sees them: told, apart, and never mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.world import AGENT, World, reasons, report, text

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

pytestmark = pytest.mark.anyio

LOSSY = {"lossy": "fp8"}
#: The fake engine's KV is no real numbers, so nothing is lost of it.
TOLD: JsonValue = {"way": "fp8", "errors": {}}


async def test_suspends_and_resumes_tell_that_kv_is_lossy(world: World) -> None:
    engine = world.start_engine(fields=LOSSY)
    await world.create()
    await world.turn(AGENT, text(100))
    assert report(await world.suspend())["snapshot"]["lossy"] == TOLD
    world.kill_engine(engine)
    world.start_engine(fields=LOSSY)
    told = report(await world.resume())
    assert (told["outcome"], told["lossy"]) == ("restored", TOLD)
    view = await world.show()
    assert view.session.snapshot is not None
    assert view.session.snapshot.lossy is not None
    # Suspended again, it is still marked, also when nothing new is written.
    assert report(await world.suspend())["snapshot"]["lossy"] == TOLD


@pytest.mark.parametrize(("stored", "live"), [(LOSSY, {}), ({}, LOSSY)])
async def test_lossy_kv_is_for_engines_that_ask_for_it_and_no_other_is_for_those(
    world: World, stored: dict[str, str], live: dict[str, str]
) -> None:
    engine = world.start_engine(fields=stored)
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine(fields=live)
    told = report(await world.resume())
    assert (told["outcome"], reasons(told)) == ("recomputed", ["lossy_mismatch"])
    (cause,) = told["causes"]
    assert (cause["stored"], cause["live"]) == (stored.get("lossy"), live.get("lossy"))
    assert told["disk_tokens"] == 0


async def test_blocks_of_an_engine_that_stores_with_loss_have_a_salt_of_their_own(
    world: World,
) -> None:
    lossy = world.start_engine(fields=LOSSY)
    await world.create()
    await world.turn(AGENT, text(100))
    report(await world.suspend())
    keys = world.store.keys
    assert {seen.cache_salt for seen in lossy.seen} == {keys.cache_salt(DEFAULT_TENANT, "", "fp8")}
    world.kill_engine(lossy)
    plain = world.start_engine()
    await world.turn(AGENT, text(100))
    assert {seen.cache_salt for seen in plain.seen} == {keys.cache_salt(DEFAULT_TENANT)}
