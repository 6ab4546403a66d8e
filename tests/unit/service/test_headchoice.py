"""Which of several engines' heads counts, where more than one engine has had a session's turns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.session import SessionState
from sessiond.service.engines import Where
from sessiond.service.headchoice import choose_head, is_needed
from sessiond.testing.world import AGENT, World, report, text

if TYPE_CHECKING:
    from sessiond.domain.tokens import TokenIds
    from sessiond.testing.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

EMPTY = Head(DEFAULT_TENANT, AGENT, "a", 1, 0, 10.0, ())


def head(engine_id: str, tokens: TokenIds[int], at_s: float, began_s: float | None = None) -> Head:
    """Return the head of one line, of one turn by default."""
    began_s = at_s if began_s is None else began_s
    branch = Branch(tokens, "", "salt", at_s, TurnSplit(len(tokens) - 8), began_unix_s=began_s)
    return replace(EMPTY, engine_id=engine_id, updated_unix_s=at_s, branches=(branch,))


OURS = head("a", text(1000), 10.0)
CASES = {
    # name: (the newer head, whether it counts, whether the older one is needed all the same)
    "it goes on": (head("b", text(1100), 20.0), True, False),
    "nothing is there": (replace(EMPTY, engine_id="b", updated_unix_s=20.0), False, True),
    "a turn has only begun": (
        replace(EMPTY, engine_id="b", updated_unix_s=20.0, turns_in_flight=1), True, True,
    ),
    "a turn that is not kept": (
        replace(EMPTY, engine_id="b", updated_unix_s=20.0, unkept="not_text"), True, True,
    ),
    "a side call": (head("b", text(64, seed=8), 20.0), False, True),
    "an agent of its own": (head("b", text(64, seed=8), 20.0, 15.0), False, True),
    "a new beginning": (head("b", text(200) + text(99, seed=8), 20.0, 15.0), True, False),
    "a resume of less": (head("b", text(500), 20.0, 0.0), True, True),
    "a resume of all": (head("b", text(1000), 20.0, 0.0), True, False),
    "an old turn, and one that left nothing": (
        replace(head("b", text(500), 5.0), updated_unix_s=20.0), False, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_conversation_is_not_hidden(name: str) -> None:
    newer, counts, needed = CASES[name]
    chosen = newer if counts else OURS
    assert choose_head([OURS, newer]) is chosen
    assert choose_head([newer, OURS]) is chosen
    if counts:
        assert is_needed(OURS, newer) is needed
    else:
        assert not is_needed(newer, OURS)


def test_what_an_engine_keeps_nothing_of_gives_way() -> None:
    side_call = CASES["a side call"][0]
    assert choose_head([OURS, side_call], {"a"}) is side_call
    assert choose_head([]) is None


@pytest.fixture
async def other(world: World, engine: FakeEngine) -> FakeEngine:
    """A second engine, beside the one that has the session."""
    assert engine.info in await world.services.context.engines.live()
    return world.start_engine("other")


async def test_a_turn_elsewhere_that_left_nothing_hides_nothing(
    world: World, other: FakeEngine
) -> None:
    report(await world.suspend())
    await world.turn(AGENT, text(300))
    other.begin_turn(DEFAULT_TENANT, AGENT)
    assert (await world.show()).state is SessionState.RUNNING
    other.end_turn(DEFAULT_TENANT, AGENT)
    assert (await world.show()).state is SessionState.ACTIVE
    world.pass_time(1000.0)
    assert (await world.services.sweeper.sweep()).suspended == 1
    assert world.store.read_manifest(DEFAULT_TENANT, AGENT, 2).restorable_tokens == 304


async def test_a_reset_elsewhere_hides_nothing(
    world: World, engine: FakeEngine, other: FakeEngine
) -> None:
    ticket = await world.services.turns.ticket(
        DEFAULT_TENANT, AGENT, where=Where(other.info.engine_id)
    )
    await world.use(ticket, text(200))
    engine.reset()
    assert (await world.show()).state is SessionState.ACTIVE
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 208 - 16


async def test_an_engine_that_has_forgotten_what_was_resumed_there_has_it_no_more(
    world: World, engine: FakeEngine, other: FakeEngine
) -> None:
    report(await world.suspend())
    engine.update(draining=True)
    world.store.drains.mark(engine.info.engine_id, {})
    other.begin_turn(DEFAULT_TENANT, AGENT)
    other.end_turn(DEFAULT_TENANT, AGENT)
    assert report(await world.resume())["engine_id"] == other.info.engine_id
    presence = (await world.show()).presence
    assert presence is not None
    assert presence.engine_id == other.info.engine_id
    other.reset()
    view = await world.show()
    assert view.state is SessionState.SUSPENDED
    assert view.presence is not None
    assert view.presence.engine_id == engine.info.engine_id


async def test_a_side_call_elsewhere_is_not_stored_in_place_of_the_conversation(
    world: World, engine: FakeEngine, other: FakeEngine
) -> None:
    ticket = await world.services.turns.ticket(
        DEFAULT_TENANT, AGENT, where=Where(other.info.engine_id)
    )
    await world.use(ticket, text(64, seed=8))
    assert report(await world.suspend())["snapshot"]["tokens_restorable"] == 96
    stored = world.store.read_manifest(DEFAULT_TENANT, AGENT, 1)
    assert stored.engine_id == engine.info.engine_id
    assert (await world.show()).state is SessionState.SUSPENDED
