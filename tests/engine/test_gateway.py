"""The gateway before the real engine: what passes, passes as it is, and turns are turns."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import httpx
import openai
import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.stack import SERVED_NAME, Stack
from sessiond.testing.texts import opening

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_PATIENCE_S = 60.0
HELLO = [{"role": "user", "content": "Name three colours of the rainbow."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
CALL_IT = {"type": "function", "function": {"name": "weather"}}
ANSWER = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
        },
    },
}


@pytest.fixture
def direct(stack: Stack) -> Iterator[httpx.Client]:
    url = f"http://127.0.0.1:{stack.engine_port}"
    with httpx.Client(base_url=url, timeout=_PATIENCE_S) as client:
        yield client


@pytest.fixture
def gate(stack: Stack) -> Iterator[httpx.Client]:
    url = f"http://127.0.0.1:{stack.daemon_port}"
    with httpx.Client(base_url=url, timeout=_PATIENCE_S) as client:
        yield client


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{stack.daemon_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def of(agent: Agent) -> dict[str, str]:
    return {"X-Session-Id": agent.session_id}


def chat(**fields: object) -> dict[str, Any]:
    return {
        "model": SERVED_NAME,
        "messages": HELLO,
        "max_tokens": 12,
        "temperature": 0,
        **fields,
    }


def lasting(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return *value* without what is different in each answer."""
    changing = {"id", "created", "created_at", "request_id", "call_id", "item_id"}
    changing.add("sequence_number")  # of events, of which a busy engine sends fewer
    changing.add("kv_transfer_params")  # of our own, in the last event of a streamed response
    if isinstance(value, dict):
        return {name: lasting(one) for name, one in value.items() if name not in changing}
    return [lasting(one) for one in value] if isinstance(value, list) else value


def events_of(text: str) -> list[Any]:
    """Return the events of a stream, without our comment."""
    said = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [one if one == "[DONE]" else lasting(json.loads(one)) for one in said]


def joined(events: list[Any]) -> dict[object, Any]:
    """Return what a stream says by choice, or by kind of event.

    Choices come as the engine has them, and several tokens at once if its server is behind.
    """
    said: dict[object, Any] = {}
    for event in events:
        kind = kind_of(event)
        said[kind] = gathered(said.get(kind), event)
    return said


def kind_of(event: Any) -> object:  # noqa: ANN401 - any JSON
    if not isinstance(event, dict) or "type" in event:
        return event["type"] if isinstance(event, dict) else event
    return event["choices"][0]["index"] if event["choices"] else "usage"


def gathered(one: Any, other: Any, name: str = "") -> Any:  # noqa: ANN401 - any JSON
    """Return two parts of what one choice says, as if it had said them at once."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        names = {**one, **other}
        return {name: gathered(one.get(name), other.get(name), name) for name in names}
    if name in {"content", "text", "arguments", "delta", "token_ids"}:
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        return [gathered(*pair) for pair in zip_longest(one, other)]
    return other


def comment_of(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text.rpartition(": sessiond ")[2])
    return told


COMPLETION = {"model": SERVED_NAME, "prompt": "Once", "max_tokens": 8, "temperature": 0}
RESPONSE = {"model": SERVED_NAME, "input": "Hi", "max_output_tokens": 8, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "body", "with_session"),
    [
        # One token alone is likely: which others were, a batch of another shape decides.
        (CHAT, chat(n=2, temperature=0.7, return_token_ids=True, logit_bias={"1000": 100}), True),
        (CHAT, chat(tools=[WEATHER], tool_choice=CALL_IT), True),
        (CHAT, chat(response_format=ANSWER), True),
        (COMPLETIONS, COMPLETION, False),
        (RESPONSES, RESPONSE, True),
    ],
    ids=["several", "tool", "schema", "completion", "response"],
)
def test_answers_and_streams_are_those_of_a_direct_call(  # noqa: PLR0917 - fixtures and columns
    direct: httpx.Client,
    gate: httpx.Client,
    new_agent: Callable[[], Agent],
    path: str,
    body: dict[str, Any],
    with_session: bool,  # noqa: FBT001 - a column
) -> None:
    headers = of(new_agent()) if with_session else {}
    expected = direct.post(path, json=body)
    answer = gate.post(path, json=body, headers=headers)
    assert (answer.status_code, expected.status_code) == (200, 200)
    assert lasting(answer.json()) == lasting(expected.json())
    assert answer.json()["kv_transfer_params"] is None

    streamed = {**body, "stream": True}
    if path != RESPONSES:
        streamed["stream_options"] = {"include_usage": True}
    plain, passed = (
        one.post(path, json=streamed, headers=more) for one, more in ((direct, {}), (gate, headers))
    )
    assert passed.headers["content-type"] == plain.headers["content-type"]
    assert len(events_of(plain.text)) > 2
    assert joined(events_of(passed.text)) == joined(events_of(plain.text))
    assert (": sessiond " in passed.text) == with_session
    if with_session:
        assert answer.headers["x-sessiond-outcome"] == "recomputed"  # less than a chunk
        # A stream does not wait for long for the engine's record.
        assert comment_of(passed.text)["outcome"] in ("recomputed", "unknown")


def test_openais_own_client_streams_and_calls_tools(client: openai.OpenAI, agent: Agent) -> None:
    said = client.chat.completions.create(**chat(stream=True), extra_headers=of(agent))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in said)
    assert text
    called = client.chat.completions.create(
        **chat(tools=[WEATHER], tool_choice=CALL_IT, max_tokens=40),
        extra_body={"session_id": agent.session_id},
    )
    (call,) = called.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert call.function.arguments
    assert [model.id for model in client.models.list()] == [SERVED_NAME]
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        client.chat.completions.create(**chat(), extra_headers={"X-Session-Id": "a/b"})
    assert raised.value.code == "invalid_session_id"
    assert "letters" in raised.value.message
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**chat(model="typo"), extra_headers=of(agent))
    assert "typo" in unknown.value.message


def test_a_suspended_session_comes_back_by_a_plain_turn(
    gate: httpx.Client, agent: Agent, evict: Callable[[], None]
) -> None:
    body = chat(messages=opening(agent.session_id, 1500), max_tokens=16, return_token_ids=True)

    def tokens_of(answer: httpx.Response) -> list[int]:
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens

    first = gate.post(CHAT, json=body, headers=of(agent))
    warm = gate.post(CHAT, json=body, headers=of(agent))
    assert first.headers["x-sessiond-outcome"] == "recomputed"
    assert warm.headers["x-sessiond-outcome"] == "warm"
    restorable = agent.suspend()["snapshot"]["tokens_restorable"]
    evict()

    back = gate.post(CHAT, json=body, headers=of(agent))
    assert back.headers["x-sessiond-outcome"] == "restored"
    assert "x-sessiond-reason" not in back.headers
    assert int(back.headers["x-sessiond-tokens-restored"]) == restorable
    assert tokens_of(back) == tokens_of(warm)
    assert back.json()["kv_transfer_params"] is None

    evict()
    streamed = gate.post(CHAT, json={**body, "stream": True}, headers=of(agent))
    told = comment_of(streamed.text)
    assert (told["outcome"], told["tokens_disk"]) in (("restored", restorable), ("unknown", None))
    assert turn_of(agent, told["turn_id"])["disk_tokens"] == restorable


def turn_of(agent: Agent, turn_id: str) -> dict[str, Any]:
    """Return what the session's trail has of a turn, as soon as it has that."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        turns = [event["detail"] for event in agent.events() if event["kind"] == "turn"]
        found: dict[str, Any] | None = next(
            (one for one in turns if one["turn_id"] == turn_id), None
        )
        if found is not None:
            return found
        assert time.monotonic() < until_s
        time.sleep(0.1)


def running(direct: httpx.Client) -> float:
    """Return how many requests the engine works on."""
    found = re.search(r"^vllm:num_requests_running\{.*\} (.*)$", direct.get("/metrics").text, re.M)
    assert found
    return float(found[1])


@pytest.mark.parametrize("streamed", [False, True])
def test_whoever_hangs_up_ends_the_engines_work(
    direct: httpx.Client, gate: httpx.Client, agent: Agent, *, streamed: bool
) -> None:
    endless = chat(max_tokens=5000, ignore_eos=True, stream=streamed)
    if streamed:
        with gate.stream("POST", CHAT, json=endless, headers=of(agent)) as answer:
            next(answer.iter_raw())
            assert running(direct)
    else:
        with pytest.raises(httpx.ReadTimeout):
            gate.post(CHAT, json=endless, headers=of(agent), timeout=httpx.Timeout(30, read=1.0))
    deadline_s = time.monotonic() + 15  # all of it would take minutes
    while running(direct):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    answer = gate.post(CHAT, json=chat(), headers=of(agent))
    assert answer.status_code == httpx.codes.OK


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(model="typo")),
        (CHAT, chat(messages="hi")),
        (CHAT, chat(max_tokens=100_000)),
        (CHAT, chat(stream="yes", max_tokens=0)),
        (COMPLETIONS, {"model": SERVED_NAME, "prompt": [5] * 6000}),
        (RESPONSES, {"model": SERVED_NAME, "input": "Hi", "previous_response_id": "resp_1"}),
    ],
)
def test_the_engines_errors_are_those_of_a_direct_call(
    direct: httpx.Client, gate: httpx.Client, agent: Agent, path: str, body: dict[str, Any]
) -> None:
    expected = direct.post(path, json=body)
    assert expected.is_client_error
    for headers in ({}, of(agent)):
        answer = gate.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.json()) == (expected.status_code, expected.json())


def test_nobody_changes_prompts_through_vllms_own_parameters(
    gate: httpx.Client, agent: Agent
) -> None:
    honest = chat(return_token_ids=True)
    attack = {
        **honest,
        "kv_transfer_params": {"prompt_token_ids": [1, 2, 3], "max_load_tokens": 0},
        "vllm_xargs": {"session_id": "another"},
        "cache_salt": "another",
    }
    for headers in ({}, of(agent)):
        plain, changed = (
            gate.post(CHAT, json=body, headers={**headers, "X-data-parallel-rank": "7"}).json()
            for body in (honest, attack)
        )
        assert changed["prompt_token_ids"] == plain["prompt_token_ids"]
        assert lasting(changed["choices"]) == lasting(plain["choices"])
