"""Errors of the gateway, readable for clients of OpenAI's interface and for ours."""

from typing import Final

from fastapi.responses import JSONResponse

from sessiond.api.problems import STATUS, problem_fields
from sessiond.domain.errors import SessiondError

_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models"}
)
_BELOW: Final = "/v1/responses/"
#: Tells our errors from vLLM's, which pass as they are.
ERROR_TYPE: Final = "sessiond_error"


def is_gateway(path: str) -> bool:
    """Whether an address is one of OpenAI's interface."""
    return path in _PATHS or path.startswith(_BELOW)


def openai_error(error: SessiondError, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error of ours as OpenAI's clients know errors, with a problem's fields beside."""
    problem = problem_fields(error)
    message = f"{problem['detail']} {error.hint}".strip()
    shown = {"message": message, "type": ERROR_TYPE, "param": None, "code": error.code}
    more = {
        # OpenAI's clients repeat a call by its status, unless they are told.
        "x-should-retry": "true" if error.retryable else "false",
        **(headers or {}),
    }
    if STATUS[error.code] == 401:
        more["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": shown, **problem}, STATUS[error.code], headers=more)
