"""Token-faithful continuation: the session's own tokens, or the reason why not."""

from __future__ import annotations

from typing import Any

import pytest

from sessiond.domain.continuation import Chat, Continuation
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.domain.tokens import TokenIds, token_ids
from sessiond.service.continuation import Continuer
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.fake_tokenizer import END, decode, encode, render, spell
from sessiond.testing.world import AGENT, World, report

pytestmark = pytest.mark.anyio

Messages = list[dict[str, Any]]
ASKED: Messages = [{"role": "user", "content": "what is this, and why is it here" * 3}]
REPLY = "a letter and one more "
AGAIN: Messages = [
    *ASKED,
    {"role": "assistant", "content": REPLY},
    {"role": "user", "content": "go on"},
]


async def replied(world: World, reply: str = REPLY, *, canonical: bool = False) -> FakeEngine:
    """Take a first turn whose reply is spelled letter by letter, or as it would be rendered."""
    engine = world.start_engine()
    await world.create()
    tokens = encode(reply) if canonical else spell(reply)
    tokens.append(END)
    engine.replies.append(tokens)
    await world.turn(AGENT, render(ASKED))
    return engine


async def continued(world: World, messages: Messages) -> Continuation:
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT, Chat(messages))
    found = ticket.continuation
    assert found is not None
    ids = ticket.kv_transfer_params.get("prompt_token_ids")
    assert ids == (None if found.prompt is None else list(found.prompt))
    assert (found.prompt is None) or (found.cause is None)
    return found


def require_faithful(found: Continuation) -> None:
    head = render(ASKED) + spell(REPLY)
    head.append(END)
    assert found.prompt is not None, found.cause
    assert found.prompt[: len(head)] == head
    assert found.prompt != render(AGAIN)
    assert decode(found.prompt) == decode(render(AGAIN))
    assert found.gained_tokens == len(head) - len(render(ASKED))


async def refusal(world: World, messages: Messages) -> tuple[str, str]:
    found = await continued(world, messages)
    assert found.prompt is None
    assert found.cause is not None
    return found.cause.reason.value, found.cause.detail


async def test_a_reply_is_continued_as_it_was_sampled(world: World) -> None:
    await replied(world)
    require_faithful(await continued(world, AGAIN))


async def test_a_reply_of_which_no_head_tells_yet_is_continued(world: World) -> None:
    engine = world.start_engine()
    await world.create()
    engine.faults.late_heads = True
    engine.replies.append(spell(REPLY) + token_ids([END]))
    await world.turn(AGENT, render(ASKED))
    require_faithful(await continued(world, AGAIN))
    heads = [seen for seen in engine.seen if seen.op == "heads"]
    assert len(heads) == 1


async def test_nothing_is_asked_of_the_engine_without_being_asked(world: World) -> None:
    engine = await replied(world)
    engine.faults.unrenderable = True
    ticket = await world.services.turns.ticket(DEFAULT_TENANT, AGENT)
    assert ticket.continuation is None
    assert ticket.kv_transfer_params.keys() == {"sessiond_ticket"}


async def test_a_reply_that_becomes_the_same_tokens_needs_no_prompt_of_ours(world: World) -> None:
    await replied(world, canonical=True)
    found = await continued(world, AGAIN)
    assert (found.prompt, found.cause, found.gained_tokens) == (None, None, 0)


@pytest.mark.parametrize("place", range(len(AGAIN) - 1), ids=["the first message", "the reply"])
async def test_a_changed_message_takes_the_ordinary_way(world: World, place: int) -> None:
    await replied(world)
    changed = [{**one} for one in AGAIN]
    changed[place]["content"] += "!"
    reason, detail = await refusal(world, changed)
    assert reason == "not_faithful"
    assert "text differs from character" in detail


async def test_reasoning_that_the_template_strips_takes_the_ordinary_way(world: World) -> None:
    await replied(world, "think of it. " + REPLY)
    assert (await refusal(world, AGAIN))[0] == "not_faithful"


async def test_a_compacted_history_takes_the_ordinary_way(world: World) -> None:
    await replied(world)
    summary = [{"role": "user", "content": "a summary of what was said"}]
    assert (await refusal(world, summary))[0] == "not_faithful"


async def test_images_take_the_ordinary_way(world: World) -> None:
    engine = await replied(world)
    engine.faults.unrenderable = True  # images are not even sent to be rendered
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert await refusal(world, [*AGAIN, image]) == ("not_text", "")


async def test_a_session_without_tokens_takes_the_ordinary_way(world: World) -> None:
    world.start_engine()
    await world.create()
    assert (await refusal(world, AGAIN))[0] == "not_faithful"


async def test_an_engine_that_cannot_render_says_why(world: World) -> None:
    engine = await replied(world)
    engine.faults.unrenderable = True
    reason, detail = await refusal(world, AGAIN)
    assert reason == "not_faithful"
    assert "The template fails" in detail


async def test_a_tokenizer_that_hides_spaces_proves_nothing(world: World) -> None:
    engine = await replied(world)
    engine.faults.drops_spaces = True
    reason, detail = await refusal(world, AGAIN)
    assert (reason, detail) == ("not_faithful", "the tokenizer does not show texts as they are")


async def test_a_prompt_must_leave_room_for_a_reply(world: World) -> None:
    engine = await replied(world)
    engine.update(max_model_tokens=len(render(AGAIN)) + 1)
    reason, detail = await refusal(world, AGAIN)
    assert reason == "not_faithful"
    assert "no room" in detail


def foreign() -> TokenIds[int]:
    """Return a head of another vocabulary: the engine refuses to show its text."""
    return token_ids([1_000_000_000] * 500 + [END])


@pytest.mark.parametrize("foreign_first", [False, True])
async def test_a_head_that_cannot_be_proved_does_not_cost_the_other(
    world: World, *, foreign_first: bool
) -> None:
    await replied(world)
    good = render(ASKED) + spell(REPLY) + token_ids([END])
    heads = [foreign(), good] if foreign_first else [good, foreign()]
    continuer = Continuer(world.services.context.client, 10.0)
    require_faithful(await continuer.find(world.started[0].info, heads, Chat(AGAIN)))


async def test_the_first_head_says_why_none_can_be_used(world: World) -> None:
    await replied(world)
    continuer = Continuer(world.services.context.client, 10.0)
    heads = [foreign(), spell("something else")]
    found = await continuer.find(world.started[0].info, heads, Chat(AGAIN))
    assert (found.prompt, found.head_tokens) == (None, 501)
    assert found.cause is not None
    assert "No such token" in found.cause.detail


async def test_all_that_is_asked_of_the_engine_has_one_deadline(world: World) -> None:
    engine = await replied(world)
    engine.faults.slow_tokenizer_s = 0.2  # each of five calls is in time
    head = render(ASKED) + spell(REPLY) + token_ids([END])
    continuer = Continuer(world.services.context.client, 0.5)
    found = await continuer.find(engine.info, [head], Chat(AGAIN))
    assert found.prompt is None
    assert found.cause is not None
    assert "within 0.5 s" in found.cause.detail


@pytest.mark.parametrize("resumed", [False, True])
async def test_after_a_restart_the_snapshot_tells_the_tokens(
    world: World, *, resumed: bool
) -> None:
    engine = await replied(world)
    report(await world.suspend())
    world.kill_engine(engine)
    world.start_engine()
    if resumed:
        assert report(await world.resume())["outcome"] == "restored"
    require_faithful(await continued(world, AGAIN))
