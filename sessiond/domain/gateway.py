"""What the gateway changes in a call to vLLM's OpenAI-compatible interface, and in its answer.

Of vLLM's own additions to OpenAI's fields, those of :data:`FIELD_RULES` can reach the KV of
others, the caches or the placement of a request; the rest is none of our business and passes.

Of headers, only those pass that are named here: vLLM reads a rank, a session id and a priority
from headers, and later versions may read others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sessiond.domain.continuation import Chat
from sessiond.domain.errors import InvalidInputError, InvalidSessionIdError
from sessiond.domain.ids import SessionId, parse_session_id
from sessiond.domain.jsonbody import JsonBody
from sessiond.domain.tickets import ANSWER_PARAM

Headers = list[tuple[bytes, bytes]]

#: What becomes of the fields of a body that are more than what the model is asked.
FIELD_RULES: Final[Mapping[str, str]] = {
    "cache_salt": "replaced: it separates tenants in VRAM and RAM",
    "kv_transfer_params": "replaced as a whole: vLLM's keys in it change prompts and loads",
    "ec_transfer_params": "dropped: the same for the cache of encoders",
    "vllm_xargs": "dropped: vLLM keeps it beside kv_transfer_params, and reads a session id in it",
    "session_id": "dropped: ours, and a hint of vLLM's for routing",
    "request_id": "replaced in responses, where it names what vLLM stores; else as it is",
    "messages": "as they are, but for the uuid of an image, which gets the tenant's own form: vLLM "
    "shows whoever gives it the image that it was first given with; so in input, too",
    "model": "set if it is missing, or if the engine serves the session's model under another name",
    "priority": "as it is: vLLM takes it only where an operator turned priorities on",
    "prompt_cache_key": "as it is; names the session only with SESSIOND_GATEWAY_PROMPT_CACHE_KEY",
}

SALT_FIELD: Final = "cache_salt"
PARAMS_FIELD: Final = "kv_transfer_params"
SESSION_FIELD: Final = "session_id"
#: Clients share it between conversations, so it names a session only where that is configured.
CACHE_KEY_FIELD: Final = "prompt_cache_key"
#: What may have parts with images.
_WITH_PARTS: Final = ("messages", "input", "previous_input_messages")
_DROPPED: Final = frozenset({SESSION_FIELD, "ec_transfer_params", "vllm_xargs"})

_PASSED_HEADERS: Final = frozenset(
    {
        b"accept",
        b"baggage",
        b"content-type",
        b"endpoint-load-metrics-format",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    }
)
_OWN_PREFIX: Final = b"x-sessiond-"
#: Of the answer: about one connection, made anew by our server, or a matter of other hosts.
_KEPT_BACK: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"server",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

#: What else than messages, tools and template arguments decides a chat's prompt, and the values
#: with which it does not: continuing token for token is for chats without.
_PROMPT_FIELDS: Final[Mapping[str, tuple[object, ...]]] = {
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None, False),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "documents": (None,),
    "media_io_kwargs": (None,),
    "mm_processor_kwargs": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto"),
    "truncate_prompt_tokens": (None,),
}


@dataclass(frozen=True)
class Forwarded:
    """What makes a call one of its tenant, and of its session."""

    cache_salt: str
    kv_transfer_params: Mapping[str, object] | None = None  #: ``None`` without a ticket
    model: str | None = None  #: ``None``: as the client wrote it
    request_id: str | None = None  #: the same


def session_of_call(
    header_values: Iterable[str], body: JsonBody, *, by_cache_key: bool = False
) -> SessionId | None:
    """Return the session that a call is for; ``None`` if it names none.

    :param header_values: of every header that names one
    :raises InvalidSessionIdError: what names one is not a session id.
    :raises InvalidInputError: header and body name two.
    """
    named = {_named(value) for value in (*header_values, *_in_body(body))}
    if len(named) > 1:
        shown = " and ".join(sorted(named))
        raise InvalidInputError(f"The call names two sessions, {shown}: give one of them.")
    if named:
        return named.pop()
    key = body.get(CACHE_KEY_FIELD) if by_cache_key else None
    return _of_cache_key(key) if isinstance(key, str) and key else None


def forwarded_body(body: JsonBody, forwarded: Forwarded) -> bytes:
    """Return the body that the engine gets: only what the rules name is changed."""
    values: dict[str, object] = {SALT_FIELD: forwarded.cache_salt}
    for name in _WITH_PARTS:
        given = body.get(name)
        own = _with_own_uuids(given, forwarded.cache_salt)
        if own != given:
            values[name] = own
    dropped = set(_DROPPED)
    if forwarded.kv_transfer_params is None:
        dropped.add(PARAMS_FIELD)
    else:
        values[PARAMS_FIELD] = forwarded.kv_transfer_params
    if forwarded.model is not None:
        values["model"] = forwarded.model
    if forwarded.request_id is not None:
        values["request_id"] = forwarded.request_id
    return body.changed(values, dropped)


def forwarded_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return those of a request's headers, named in lower case, that the engine gets."""
    return [(name, value) for name, value in headers if name in _PASSED_HEADERS]


def answered_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return those of the engine's headers, named in lower case, that the client gets."""
    return [
        (name, value)
        for name, value in headers
        if name not in _KEPT_BACK and not name.startswith(_OWN_PREFIX)
    ]


def answered_body(body: JsonBody) -> bytes:
    """Return an engine's answer as it would be without a ticket."""
    params = body.get(PARAMS_FIELD)
    others = (
        {name: one for name, one in params.items() if name != ANSWER_PARAM}
        if isinstance(params, dict)
        else None
    )
    return body.changed({PARAMS_FIELD: others or None})


def chat_of(body: JsonBody) -> Chat | str:
    """Return what a chat completion's prompt is rendered from, or why that is not all of it."""
    messages, tools = body.get("messages"), body.get("tools")
    arguments = body.get("chat_template_kwargs")
    if not _are_objects(messages) or not messages:
        return "it has no list of messages"
    if tools is not None and not _are_objects(tools):
        return "its tools are no list of objects"
    if arguments is not None and not isinstance(arguments, dict):
        return "its chat_template_kwargs are no object"
    for name, neutral in _PROMPT_FIELDS.items():
        if body.get(name) not in neutral:
            return f"its {name} may change the prompt"
    assert isinstance(messages, list)
    return Chat(messages, tools if isinstance(tools, list) else None, arguments)


def _with_own_uuids(messages: object, salt: str) -> object:
    """Return messages whose parts have a uuid that no other tenant can give."""
    if not isinstance(messages, list):
        return messages
    return [
        {**one, "content": [_with_own_uuid(part, salt) for part in one["content"]]}
        if isinstance(one, dict) and isinstance(one.get("content"), list)
        else one
        for one in messages
    ]


def _with_own_uuid(part: object, salt: str) -> object:
    named = part.get("uuid") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(named, str):
        return part
    digest = hashlib.sha256(f"{salt}\0{named}".encode("utf-8", "surrogatepass")).hexdigest()
    return {**part, "uuid": digest}


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _in_body(body: JsonBody) -> Iterable[object]:
    named = body.get(SESSION_FIELD)
    return () if named is None else (named,)


def _named(value: object) -> SessionId:
    if not isinstance(value, str):
        raise InvalidSessionIdError("The body's session_id is not text.")
    return parse_session_id(value)


def _of_cache_key(key: str) -> SessionId:
    """Return the session of a cache key, which may be any text."""
    try:
        return parse_session_id(key)
    except InvalidSessionIdError:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return SessionId(f"cache-key-{digest[:32]}")
