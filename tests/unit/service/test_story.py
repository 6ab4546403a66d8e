from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.domain.session import SessionState
from sessiond.testing.world import AGENT, report, text

if TYPE_CHECKING:
    from sessiond.testing.world import World

pytestmark = pytest.mark.anyio


async def test_suspend_kill_resume(world: World) -> None:
    first = world.start_engine()
    assert (await world.create()).state is SessionState.COLD
    await world.turn(AGENT, text(100))
    assert (await world.show()).state is SessionState.ACTIVE
    told = report(await world.suspend())
    assert told["snapshot"]["tokens_total"] == 108
    assert told["snapshot"]["tokens_restorable"] == 96
    assert told["missing_tokens"] == 0
    assert (await world.show()).state is SessionState.SUSPENDED

    world.kill_engine(first)
    assert (await world.show()).state is SessionState.SUSPENDED
    second = world.start_engine()
    told = report(await world.resume())
    assert told["outcome"] == "restored"
    assert told["tokens_restored"] == told["disk_tokens"] == 96
    view = await world.show()
    assert view.state is SessionState.ACTIVE
    assert view.session.resumed_on == second.info.engine_id

    answer = await world.turn(AGENT, text(100) + text(20, seed=2))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    events = await world.services.catalogue.events(view.session.tenant, AGENT, 0, 10)
    assert [event.kind for event in events] == ["created", "turn", "suspended", "resumed"]
