from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.continuation import Chat
from sessiond.domain.errors import InvalidInputError, InvalidSessionIdError
from sessiond.domain.gateway import (
    Forwarded,
    answered_body,
    answered_headers,
    chat_of,
    forwarded_body,
    forwarded_headers,
    session_of_call,
)
from sessiond.domain.jsonbody import JsonBody, parse_body

TICKETED = Forwarded("salt", {"sessiond_ticket": "v1.x"})
OURS = {"cache_salt", "kv_transfer_params"}
DROPPED = {"session_id", "ec_transfer_params", "vllm_xargs"}
FIELDS = st.sampled_from(
    sorted(OURS | DROPPED | {"model", "messages", "n", "priority", "request_id", "tools"})
)
VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers())


def body_of(**fields: object) -> JsonBody:
    return parse_body(json.dumps(fields).encode())


@settings(max_examples=40)
@given(st.dictionaries(FIELDS | st.text(max_size=5), VALUES))
def test_a_body_keeps_everything_but_what_reaches_kv(fields: dict[str, Any]) -> None:
    sent = json.loads(forwarded_body(body_of(**{"x": 1, **fields}), TICKETED))
    others = {name: value for name, value in fields.items() if name not in OURS | DROPPED}
    assert sent == {
        "x": 1,
        **others,
        "cache_salt": "salt",
        "kv_transfer_params": {"sessiond_ticket": "v1.x"},
    }


@settings(max_examples=40)
@given(st.dictionaries(FIELDS, VALUES))
def test_without_a_ticket_nothing_of_kv_is_left(fields: dict[str, Any]) -> None:
    sent = json.loads(forwarded_body(body_of(**fields), Forwarded("salt")))
    assert sent["cache_salt"] == "salt"
    assert not sent.keys() & (DROPPED | {"kv_transfer_params"})


def test_model_and_request_id_are_replaced_where_that_is_asked_for() -> None:
    plain = body_of(model="a", request_id="mine")
    kept = json.loads(forwarded_body(plain, TICKETED))
    assert (kept["model"], kept["request_id"]) == ("a", "mine")
    changed = Forwarded("salt", model="b", request_id="resp_1")
    sent = json.loads(forwarded_body(plain, changed))
    assert (sent["model"], sent["request_id"]) == ("b", "resp_1")


def test_a_tenant_cannot_name_an_image_of_another() -> None:
    """VLLM would show it that one, or its own one to the other."""

    def parts_for(salt: str, field: str, uuid: object) -> Any:  # noqa: ANN401 - any JSON
        image = {"type": "image_url", "image_url": None, "uuid": uuid}
        text = {"type": "text", "text": "uuid"}
        messages = [{"role": "user", "content": "uuid"}, {"role": "user", "content": [text, image]}]
        sent = json.loads(forwarded_body(body_of(**{field: messages}), Forwarded(salt)))[field]
        assert (sent[0], sent[1]["content"][0]) == (messages[0], text)
        return sent[1]["content"][1]

    for field in ("messages", "input", "previous_input_messages"):
        one, again, other = (parts_for(salt, field, "1") for salt in ("a", "a", "b"))
        assert one == again
        assert len({"1", one["uuid"], other["uuid"], parts_for("a", field, "2")["uuid"]}) == 4
        assert parts_for("a", field, None)["uuid"] is None


def test_messages_without_named_images_stay_as_they_were_written() -> None:
    raw = (
        '"messages":[{"content":[{"type":"text","text":"\\u00e4","n":1e-400}]}, 5,{"content":[1]}]'
    )
    sent = forwarded_body(parse_body(f"{{{raw}}}".encode()), Forwarded("salt"))
    assert raw.encode() in sent


def test_of_headers_only_the_harmless_ones_pass() -> None:
    harmless = [(b"content-type", b"application/json"), (b"x-request-id", b"7")]
    others = [
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"transfer-encoding",
        b"x-data-parallel-rank",
        b"x-session-id",
        b"x-sessiond-continue",
        b"x-vllm-priority",
        b"x-whatever-comes",
    ]
    assert forwarded_headers([*harmless, *((name, b"1") for name in others)]) == harmless


def test_an_answers_headers_lose_what_is_of_its_connection() -> None:
    given_headers = [
        (b"content-type", b"text/event-stream"),
        (b"x-request-id", b"7"),
        (b"connection", b"close"),
        (b"content-length", b"3"),
        (b"set-cookie", b"a=b"),
        (b"transfer-encoding", b"chunked"),
        (b"x-sessiond-outcome", b"restored"),  # only we tell that
    ]
    assert answered_headers(given_headers) == given_headers[:2]


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"sessiond": {"ok": True}}, None),
        ({"sessiond": {"ok": True}, "other": 1}, {"other": 1}),
        ({"other": 1}, {"other": 1}),
        (None, None),
    ],
)
def test_an_answer_looks_as_if_there_had_been_no_ticket(params: object, left: object) -> None:
    answered = answered_body(body_of(id="x", kv_transfer_params=params, usage={}))
    assert json.loads(answered) == {"id": "x", "kv_transfer_params": left, "usage": {}}


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ([], {}, None),
        (["a-1"], {}, "a-1"),
        ([], {"session_id": "a-1"}, "a-1"),
        (["a-1"], {"session_id": "a-1"}, "a-1"),
        ([], {"session_id": None}, None),
        ([], {"prompt_cache_key": "k"}, None),
    ],
)
def test_header_and_body_name_the_session(
    headers: list[str], fields: dict[str, Any], expected: str | None
) -> None:
    assert session_of_call(headers, body_of(**fields)) == expected


@pytest.mark.parametrize("wrong", ["", "a/b", "a b", "x" * 65, "-x", "ä", "a\n"])
def test_what_is_no_session_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        session_of_call([wrong], body_of())
    with pytest.raises(InvalidSessionIdError):
        session_of_call([], body_of(session_id=wrong))


@pytest.mark.parametrize("wrong", [7, True, ["a"], {"a": 1}])
def test_a_session_id_that_is_no_text_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidSessionIdError):
        session_of_call([], body_of(session_id=wrong))


def test_two_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="two sessions, a and b"):
        session_of_call(["a"], body_of(session_id="b"))


def test_a_cache_key_names_a_session_only_where_that_is_allowed() -> None:
    keyed = body_of(prompt_cache_key="thread 7/ä")
    assert session_of_call([], keyed) is None
    made = session_of_call([], keyed, by_cache_key=True)
    assert made is not None
    assert made.startswith("cache-key-")
    assert made == session_of_call([], keyed, by_cache_key=True)
    plain = body_of(prompt_cache_key="agent-7")
    assert session_of_call([], plain, by_cache_key=True) == "agent-7"
    assert session_of_call(["other"], plain, by_cache_key=True) == "other"
    for nothing in ("", None, 7):
        assert session_of_call([], body_of(prompt_cache_key=nothing), by_cache_key=True) is None


MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_chat_is_what_its_prompt_is_rendered_from() -> None:
    tools, arguments = [{"type": "function"}], {"thinking": False}
    found = chat_of(body_of(messages=MESSAGES, tools=tools, chat_template_kwargs=arguments))
    assert found == Chat(MESSAGES, tools, arguments)
    neutral = {"tool_choice": "auto", "add_generation_prompt": True, "documents": None}
    assert chat_of(body_of(messages=MESSAGES, **neutral)) == Chat(MESSAGES, None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": None},
        {"messages": []},
        {"messages": ["hi"]},
        {"tools": "x"},
        {"tools": [1]},
        {"chat_template_kwargs": 1},
        {"documents": [{"text": "x"}]},
        {"chat_template": "{{ 1 }}"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"reasoning_effort": "low"},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"truncate_prompt_tokens": 5},
    ],
)
def test_a_chat_with_more_than_that_says_why(fields: dict[str, Any]) -> None:
    assert isinstance(chat_of(body_of(**{"messages": MESSAGES, **fields})), str)
