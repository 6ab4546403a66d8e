"""Prompts as agents really send them: rendered anew each turn, and never quite the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sessiond.domain.tokens import common_prefix_tokens
from sessiond.testing.agent import Agent
from sessiond.testing.texts import Messages, continued, real_text

CHUNK_TOKENS = 128
#: Nats. What is loaded for a part and computed for the rest has other batches than a context that
#: is computed at once, so a near tie may flip.
TOLERANCE = 0.2
REPLY_TOKENS = 16
#: Places where tokens come after other tokens than before: of the system prompt, and of a reply.
LATE, EARLY = 300, 79
# The model is too small to call a tool by itself, so its replies are begun as calls.
_BEGUN_CALL = '<|im_start|>assistant\n<tool_call>\n{"name": "'
_TEMPLATE = (
    "{% for tool in tools or [] %}<|im_start|>tool\n{{ tool | tojson }}<|im_end|>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}" + _BEGUN_CALL + "{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city. " + real_text(1500),
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


def dated(name: str, before_tokens: int, date: str) -> Messages:
    """Return a conversation whose system prompt has a date at about this token."""
    rules = " Be kind." * ((before_tokens - 20) // 3)
    system = f"You are agent {name}.{rules} Today is {date}."
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": real_text(1800)},
    ]


def ticketed(agent: Agent, messages: Messages, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of vLLM
    ticket = agent.ticket()
    given = {name: ticket[name] for name in ("cache_salt", "kv_transfer_params")}
    return chat(agent, messages, **{**given, **fields})


def chat(agent: Agent, messages: Messages, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of vLLM
    wanted = {
        "max_tokens": 8,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 5,
        "return_tokens_as_token_ids": True,
    }
    return agent.chat(messages, **{**wanted, **fields})


def told(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["kv_transfer_params"]["sessiond"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def whole_chunks(tokens: int) -> int:
    return tokens - tokens % CHUNK_TOKENS


def require_same_reply(answer: dict[str, Any], fresh: dict[str, Any]) -> None:
    """The same tokens, up to a near tie of the fresh one's."""
    got, expected = (one["choices"][0]["logprobs"]["content"] for one in (answer, fresh))
    for one, other in zip(got, expected, strict=True):
        if one["token"] != other["token"]:
            likely = {top["token"]: top["logprob"] for top in other["top_logprobs"]}
            assert other["logprob"] - likely.get(one["token"], -100.0) < TOLERANCE
            return


def test_a_changed_date_is_told_and_what_stands_before_it_is_used(
    agent: Agent, evict: Callable[[], None]
) -> None:
    first = ticketed(agent, dated(agent.session_id, LATE, "Monday, 2026-11-30"))
    stored = agent.suspend()["snapshot"]["tokens_restorable"]
    evict()
    tomorrow = dated(agent.session_id, LATE, "Tuesday, 2026-12-01")

    turn = ticketed(agent, tomorrow)

    common = common_prefix_tokens(first["prompt_token_ids"], turn["prompt_token_ids"])
    assert 2 * CHUNK_TOKENS < common < LATE + 20
    facts = told(turn)
    assert facts["diverged_at_token"] == common
    assert facts["tokens_total"] == len(first["prompt_token_ids"]) + 8
    assert facts["tokens_restorable"] == stored > common
    assert [(c["reason"], c["detail"]) for c in facts["causes"]] == [
        ("diverged", f"at token {common}")
    ]
    assert facts["split"]["disk_tokens"] == cached(turn) == whole_chunks(common)
    require_same_reply(turn, chat(agent, tomorrow, cache_salt="a fresh session"))

    # Its KV is warm now, and this time the date comes before the end of the first chunk.
    early = ticketed(agent, dated(agent.session_id, EARLY, "Wednesday, 2026-12-02"))
    diverged_at = common_prefix_tokens(turn["prompt_token_ids"], early["prompt_token_ids"])
    assert told(early)["diverged_at_token"] == diverged_at < EARLY + 20
    assert cached(early) == 0

    shown = agent.show_when(
        lambda shown: (shown["last_turn"] or {}).get("diverged_at_token") == diverged_at
    )["last_turn"]
    agent.ticket()  # the events tell of a turn at the latest when the next one begins
    events = agent.events()
    assert (shown["diverged_at_token"], shown["computed_tokens"]) == (
        diverged_at,
        len(early["prompt_token_ids"]),
    )
    turns = [event["detail"] for event in events if event["kind"] == "turn"]
    assert [one["diverged_at_token"] for one in turns] == [None, common, diverged_at]


def spelled_out(agent: Agent) -> tuple[Messages, dict[str, Any]]:
    """Take a turn whose reply the model spells letter by letter, over the end of a chunk."""
    letter, end = (agent.tokenize(text)[0] for text in ("a", "<|im_end|>"))
    filler = CHUNK_TOKENS - 8 - agent.count_tokens(lines(agent, 0)) % CHUNK_TOKENS
    messages = lines(agent, filler % CHUNK_TOKENS)
    reply = {"allowed_token_ids": [letter, end], "logit_bias": {str(end): 100}}
    limits = {"min_tokens": REPLY_TOKENS, "max_tokens": 2 * REPLY_TOKENS, "ignore_eos": False}
    return messages, ticketed(agent, messages, **reply, **limits)


def lines(agent: Agent, words: int) -> Messages:
    content = f"Agent {agent.session_id}:" + " and" * words + "\n" + real_text(2000)
    return [{"role": "user", "content": content}]


def test_a_reply_that_becomes_other_tokens_is_continued_as_it_came(
    agent: Agent, evict: Callable[[], None]
) -> None:
    before, first = spelled_out(agent)
    reply = first["choices"][0]
    head = first["prompt_token_ids"] + reply["token_ids"]
    assert (reply["message"]["content"], reply["finish_reason"]) == ("a" * REPLY_TOKENS, "stop")
    messages = continued(before, reply["message"]["content"])
    agent.suspend()
    evict()

    ordinary = ticketed(agent, messages)

    common = common_prefix_tokens(head, ordinary["prompt_token_ids"])
    assert common < len(head) - REPLY_TOKENS // 2
    assert told(ordinary)["diverged_at_token"] == common
    assert cached(ordinary) == whole_chunks(common)
    require_same_reply(ordinary, chat(agent, messages, cache_salt="a fresh session"))

    evict()
    faithful = take_faithful_turn(agent, messages, head)

    assert cached(faithful) == whole_chunks(len(head) - 1) > cached(ordinary)
    assert told(faithful)["diverged_at_token"] is None
    ids = faithful["prompt_token_ids"]
    assert agent.detokenize(ids) == agent.detokenize(ordinary["prompt_token_ids"])
    assert faithful["usage"]["prompt_tokens"] == len(ids)
    assert faithful["choices"][0]["finish_reason"] == "length"
    params = {"kv_transfer_params": {"prompt_token_ids": ids}}
    require_same_reply(faithful, chat(agent, messages, cache_salt="another one", **params))


def take_faithful_turn(agent: Agent, messages: Messages, head: Sequence[int]) -> dict[str, Any]:
    """Take a turn that continues *head*, after it was refused for messages that were changed."""
    changed = [{**messages[0], "content": messages[0]["content"] + "!"}, *messages[1:]]
    refused = agent.ticket({"continue": {"messages": changed}})
    assert refused["kv_transfer_params"].keys() == {"sessiond_ticket"}
    assert refused["continuation"]["cause"]["reason"] == "not_faithful"

    ticket = agent.ticket({"continue": {"messages": messages}})

    assert ticket["continuation"]["faithful"]
    assert ticket["continuation"]["gained_tokens"] > 0
    ids = ticket["kv_transfer_params"]["prompt_token_ids"]
    assert ids[: len(head)] == list(head)
    given = {name: ticket[name] for name in ("cache_salt", "kv_transfer_params")}
    answer = chat(agent, messages, **given)
    assert answer["prompt_token_ids"] == ids
    return answer


def test_a_tool_call_after_a_resume_is_the_one_without(
    agent: Agent, evict: Callable[[], None]
) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "none", "chat_template": _TEMPLATE}
    asked = f"I am {agent.session_id}. Is it warm in Rome?"
    messages: Messages = [{"role": "user", "content": asked}]
    first = ticketed(agent, messages, **fields)
    messages = continued(messages, first["choices"][0]["message"]["content"], "And in Oslo?")
    baseline = ticketed(agent, messages, **fields, max_tokens=24)
    agent.suspend()
    evict()

    assert agent.resume()["outcome"] == "restored"
    again = ticketed(agent, messages, **fields, max_tokens=24)

    shown = agent.detokenize(again["prompt_token_ids"])
    assert '"name": "weather"' in shown
    assert shown.endswith(_BEGUN_CALL)
    assert cached(again) == cached(baseline) > 2 * CHUNK_TOKENS
    assert again["choices"][0]["token_ids"] == baseline["choices"][0]["token_ids"]
