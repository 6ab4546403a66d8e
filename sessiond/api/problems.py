"""Errors as RFC 9457 problem documents: one table from error code to HTTP status."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sessiond.domain.errors import (
    InvalidInputError,
    InvalidSessionIdError,
    NotFoundError,
    SessiondError,
)

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"

#: The HTTP status of every error code; a test proves that none is missing.
STATUS: Final[Mapping[str, HTTPStatus]] = {
    "internal_error": HTTPStatus.INTERNAL_SERVER_ERROR,
    "invalid_input": HTTPStatus.UNPROCESSABLE_ENTITY,
    "invalid_session_id": HTTPStatus.UNPROCESSABLE_ENTITY,
    "invalid_tenant": HTTPStatus.UNPROCESSABLE_ENTITY,
    "body_too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "nothing_to_suspend": HTTPStatus.UNPROCESSABLE_ENTITY,
    "suspend_skipped": HTTPStatus.UNPROCESSABLE_ENTITY,
    "not_text": HTTPStatus.UNPROCESSABLE_ENTITY,
    "invalid_configuration": HTTPStatus.INTERNAL_SERVER_ERROR,
    "not_found": HTTPStatus.NOT_FOUND,
    "session_not_found": HTTPStatus.NOT_FOUND,
    "operation_not_found": HTTPStatus.NOT_FOUND,
    "engine_not_found": HTTPStatus.NOT_FOUND,
    "response_lost": HTTPStatus.NOT_FOUND,
    "snapshot_not_found": HTTPStatus.NOT_FOUND,
    "conflict": HTTPStatus.CONFLICT,
    "idempotency_key_reused": HTTPStatus.CONFLICT,
    "session_exists": HTTPStatus.CONFLICT,
    "turn_in_flight": HTTPStatus.CONFLICT,
    "operation_in_progress": HTTPStatus.CONFLICT,
    "generation_exists": HTTPStatus.CONFLICT,
    "attestation_refused": HTTPStatus.CONFLICT,
    "adapter_unproven": HTTPStatus.CONFLICT,
    "suspend_refused": HTTPStatus.CONFLICT,
    "events_reset": HTTPStatus.CONFLICT,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "no_engine": HTTPStatus.SERVICE_UNAVAILABLE,
    "engine_unreachable": HTTPStatus.SERVICE_UNAVAILABLE,
    "engine_lost": HTTPStatus.BAD_GATEWAY,
    "engine_without_connector": HTTPStatus.SERVICE_UNAVAILABLE,
    "engine_refused": HTTPStatus.BAD_GATEWAY,
    "deadline_exceeded": HTTPStatus.GATEWAY_TIMEOUT,
    "identity_pending": HTTPStatus.SERVICE_UNAVAILABLE,
    "tier_off": HTTPStatus.SERVICE_UNAVAILABLE,
    "too_many_listeners": HTTPStatus.TOO_MANY_REQUESTS,
    "registry_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "unsupported_engine": HTTPStatus.INTERNAL_SERVER_ERROR,
    "file_changed": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ticket_invalid": HTTPStatus.BAD_REQUEST,
    "ticket_malformed": HTTPStatus.BAD_REQUEST,
    "ticket_forged": HTTPStatus.BAD_REQUEST,
    "ticket_expired": HTTPStatus.BAD_REQUEST,
    "store_error": HTTPStatus.INTERNAL_SERVER_ERROR,
    "store_insecure": HTTPStatus.INTERNAL_SERVER_ERROR,
    "store_version": HTTPStatus.INTERNAL_SERVER_ERROR,
    "snapshot_corrupt": HTTPStatus.INTERNAL_SERVER_ERROR,
    "store_key": HTTPStatus.INTERNAL_SERVER_ERROR,
    "store_full": HTTPStatus.INSUFFICIENT_STORAGE,
    "store_late": HTTPStatus.SERVICE_UNAVAILABLE,
    "quota_exceeded": HTTPStatus.INSUFFICIENT_STORAGE,
    # Not an error class: the result of an operation whose daemon went away.
    "lease_expired": HTTPStatus.SERVICE_UNAVAILABLE,
}

# Two components and more: what a person or a log would take for a path of this machine.
_PATHS: Final = re.compile(r"(?<![\w/:.])(?:/[^\s/'\",;]+){2,}/?")
_MAX_VALIDATION_ERRORS: Final = 20


@dataclass(frozen=True)
class _Told:
    code: str
    detail: str
    hint: str
    retryable: bool
    instance: str = ""


def problem_fields(error: SessiondError) -> dict[str, Any]:
    """Return what the problem document of *error* says."""
    told = _Told(error.code, error.message, error.hint, error.retryable)
    return _fields(STATUS[error.code], told)


def problem_response(error: SessiondError) -> JSONResponse:
    """Return the problem document of *error*."""
    told = _Told(error.code, error.message, error.hint, error.retryable)
    return _problem(STATUS[error.code], told)


def result_response(result: Mapping[str, Any], instance: str = "") -> JSONResponse:
    """Return the problem document of a failed operation, from what was recorded of it.

    :param instance: the operation's address
    """
    code = str(result.get("code"))
    told = _Told(
        code=code if code in STATUS else SessiondError.code,
        detail=str(result.get("message")),
        hint=str(result.get("hint") or ""),
        retryable=bool(result.get("retryable")),
        instance=instance,
    )
    return _problem(STATUS[told.code], told)


def install(app: FastAPI) -> None:
    """Make every error of *app* a problem document."""
    app.add_exception_handler(SessiondError, _sessiond_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)


async def _sessiond_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SessiondError)
    return problem_response(error)


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[:_MAX_VALIDATION_ERRORS]
    about_id = any(part["loc"][-1:] == ("session_id",) for part in found)
    kind = InvalidSessionIdError if about_id else InvalidInputError
    shown = "; ".join(f"{_place(part['loc'])}: {part['msg']}" for part in found)
    return problem_response(kind(shown))


async def _http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        return problem_response(NotFoundError("There is no such address."))
    told = _Told(status.name.lower(), status.description or status.phrase, "", retryable=False)
    return _problem(status, told, error.headers)


async def _unexpected_error(_request: Request, _error: Exception) -> JSONResponse:
    # The server logs it with its stack; the caller gets neither.
    return problem_response(SessiondError())


def _problem(
    status: HTTPStatus, told: _Told, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    more = dict(headers or {})
    if status is HTTPStatus.UNAUTHORIZED:
        more["WWW-Authenticate"] = "Bearer"
    body = _fields(status, told)
    return JSONResponse(body, status, headers=more, media_type=PROBLEM_MEDIA_TYPE)


def _fields(status: HTTPStatus, told: _Told) -> dict[str, Any]:
    fields = {
        "type": f"urn:sessiond:error:{told.code}",
        "title": status.phrase,
        "status": int(status),
        "detail": _PATHS.sub("…", told.detail),
        "code": told.code,
        "hint": told.hint,
        "retryable": told.retryable,
    }
    return {**fields, "instance": told.instance} if told.instance else fields


def _place(location: tuple[Any, ...]) -> str:
    return ".".join(ascii(part).strip("'") for part in location)
