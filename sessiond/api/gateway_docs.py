"""What OpenAPI shows of the gateway: its routes are no functions that FastAPI could read."""

from __future__ import annotations

from typing import Any, Final

_TURN: Final = """\

The session is the one that `X-Session-Id` names, or the body's `session_id`; a new id makes a \
session. Without one the call is passed on and nothing is kept. The body is vLLM's: `cache_salt` \
and `kv_transfer_params` are replaced, `ec_transfer_params`, `vllm_xargs` and `session_id` \
dropped, the `uuid` of an image gets a form of the tenant's own, everything else passes as it is. \
vLLM's answer and errors pass as they are; a stream \
ends with a comment, `: sessiond {"outcome": …}`.
"""
#: Of answers.
HEADERS: Final = {
    "X-Sessiond-Plan": "What the turn was expected to do: warm, load, recompute; none without a "
    "session.",
    "X-Sessiond-Reason": "The first reason why not all of the context is used; absent without one.",
    "X-Sessiond-Engine": "The engine that answered.",
    "X-Sessiond-Continue": "If asked for: continued, same (no need), or the reason why not.",
    "X-Sessiond-Outcome": "Not streamed: warm, restored, partial, recomputed or unknown.",
    "X-Sessiond-Tokens-Total": "Not streamed: of the context that the prompt was compared with.",
    "X-Sessiond-Tokens-Restored": "Not streamed: of the prompt, not computed.",
    "X-Sessiond-Tokens-Disk": "Not streamed: of them, from the snapshot.",
}


def gateway_paths() -> dict[str, Any]:
    """Return the paths as OpenAPI describes them."""
    return {
        "/v1/chat/completions": {"post": _turn("chat", "Take a turn, as a chat completion.")},
        "/v1/completions": {"post": _turn("completion", "Take a turn, as a completion.")},
        "/v1/responses": {"post": _turn("response", "Take a turn, as a response.")},
        "/v1/responses/{response_id}": {
            "get": _operation(
                "show_response",
                "Show a response that vLLM has stored, where it stores them.",
                [_RESPONSE_ID],
            )
        },
        "/v1/responses/{response_id}/cancel": {
            "post": _operation(
                "cancel_response", "Cancel a response that runs in the background.", [_RESPONSE_ID]
            )
        },
        "/v1/models": {
            "get": _operation("list_models", "List what the running engines serve, as vLLM does.")
        },
    }


_RESPONSE_ID: Final = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "As the response itself names it.",
}
_SESSION: Final = {
    "name": "X-Session-Id",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The session that the call is a turn of.",
    "example": "agent-7",
}
_CONTINUE: Final = {
    "name": "X-Sessiond-Continue",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["1", "0"]},
    "description": "1: go on with the session's exact tokens, where they have the messages' text.",
}


def _turn(name: str, summary: str) -> dict[str, Any]:
    parameters = [_SESSION, _CONTINUE] if name == "chat" else [_SESSION]
    operation = _operation(f"create_{name}", summary + "\n" + _TURN, parameters)
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "As vLLM takes it.",
    }
    answered = operation["responses"]["200"]
    answered["headers"] = {
        header: {"description": meaning, "schema": {"type": "string"}}
        for header, meaning in HEADERS.items()
    }
    answered["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return operation


def _operation(
    name: str, description: str, parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {
        "tags": ["gateway"],
        "summary": name.replace("_", " ").capitalize(),
        "description": description,
        "operationId": f"{name}_gateway",
        "parameters": parameters or [],
        "security": [{"HTTPBearer": []}],
        "responses": {
            "200": {
                "description": "As vLLM answers.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "default": {
                "description": "An error of vLLM as it is, or one of ours: OpenAI's `error` "
                "object, with the fields of a problem document beside it.",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
                },
            },
        },
    }
