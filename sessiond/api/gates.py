"""What every call passes before it is routed: who calls, and whether its session id is one.

Plain ASGI, before routing: a router sees ``%2F`` as a slash and answers 404 or 405 to ids that
deserve a 422, and it answers 404 to callers who should not learn what exists.
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessiond.api.openai_errors import is_gateway, openai_error
from sessiond.api.problems import problem_response
from sessiond.domain.errors import BodyTooLargeError, SessiondError, UnauthorizedError
from sessiond.domain.ids import DEFAULT_TENANT, TenantId, parse_session_id

_GUARDED: Final = "/v1"
_SESSIONS: Final = "/v1/sessions/"
#: The last part of addresses below one session.
ACTIONS: Final = frozenset({"suspend", "resume", "fork", "ticket", "snapshots", "events", "probe"})
#: Where the caller's tenant is kept in the request's state.
TENANT_STATE: Final = "tenant"
#: Where it is kept whether the caller may do what concerns all tenants.
OPERATOR_STATE: Final = "operator"
#: Of a request's body: a long conversation for a ticket's "continue" has a tenth of it.
MAX_BODY_BYTES: Final = 8 << 20
#: Of a call of the gateway, by default: its images are part of it.
MAX_GATEWAY_BODY_BYTES: Final = 64 << 20


class AuthGate:
    """Finds the caller's tenant; without configured tokens everybody is the default tenant."""

    def __init__(
        self, app: ASGIApp, tokens: Mapping[str, TenantId], operators: Collection[TenantId]
    ) -> None:
        self._app = app
        self._operators = operators
        self._tenants = {_digest(token): tenant for token, tenant in tokens.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer 401."""
        if scope["type"] == "http" and _is_guarded(scope["path"]):
            tenant = self._tenant(scope)
            if tenant is None:
                await _refusal(scope, UnauthorizedError())(scope, receive, send)
                return
            state = scope.setdefault("state", {})
            state[TENANT_STATE] = tenant
            state[OPERATOR_STATE] = not self._tenants or tenant in self._operators
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> TenantId | None:
        if not self._tenants:
            return DEFAULT_TENANT
        given = _digest(_bearer(scope))
        found = None
        # All are compared, each in constant time, so that the time tells nothing.
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(known, given):
                found = tenant
        return found


class SessionIdGate:
    """Answers 422 to an address with a malformed session id, however it is written."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on, or answer 422."""
        if scope["type"] == "http":
            written = _written_id(scope)
            if written is not None:
                try:
                    parse_session_id(written)
                except SessiondError as error:
                    await problem_response(error)(scope, receive, send)
                    return
        await self._app(scope, receive, send)


class BodyGate:
    """Answers 413 to a body that is too large, before all of it is read."""

    def __init__(self, app: ASGIApp, gateway_bytes: int = MAX_GATEWAY_BODY_BYTES) -> None:
        self._app = app
        self._gateway_bytes = gateway_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on with its body, or answer 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit_bytes = self._gateway_bytes if is_gateway(scope["path"]) else MAX_BODY_BYTES
        # One that waits to be told to go on is not told so in vain.
        fits = _announced_bytes(scope) <= limit_bytes
        first = await _read(receive, limit_bytes) if fits else None
        if first is None:
            await _refusal(scope, _too_large(limit_bytes))(scope, receive, send)
            return
        unread = [first]

        async def replayed() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replayed, send)


class TurnsFirst:
    """Passes turns by routes, and by handlers of errors, that they do not need.

    What these cost they cost for each part of a stream.
    """

    def __init__(self, turns: Mapping[str, ASGIApp], others: ASGIApp) -> None:
        """Make one.

        :param turns: what answers ``POST``, by address
        :param others: what answers all other calls
        """
        self._turns = turns
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        turn = None
        if scope["type"] == "http" and scope["method"] == "POST":
            turn = self._turns.get(scope["path"])
        await (turn or self._others)(scope, receive, send)


def _announced_bytes(scope: Scope) -> int:
    """Return the size that a body has by its headers; 0 if they do not tell."""
    told = dict(scope["headers"]).get(b"content-length", b"")
    return int(told) if told.isdigit() else 0


async def _read(receive: Receive, limit_bytes: int) -> Message | None:
    """Return the whole body as one message; ``None`` if it is too large."""
    parts, size_bytes = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message  # the caller hung up
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > limit_bytes:
            return None
        if not message.get("more_body", False):
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _too_large(limit_bytes: int) -> BodyTooLargeError:
    if limit_bytes == MAX_BODY_BYTES:
        return BodyTooLargeError()
    error = BodyTooLargeError(f"The request's body has more than {limit_bytes >> 20} MiB.")
    error.hint = "Raise SESSIOND_GATEWAY_BODY_BYTES, or give images by URL."
    return error


def _refusal(scope: Scope, error: SessiondError) -> Response:
    if is_gateway(scope["path"]):
        return openai_error(error)
    return problem_response(error)


def _written_id(scope: Scope) -> str | None:
    """Return the session id in the address as it was written; ``None`` if there is none."""
    raw: bytes = scope.get("raw_path") or b""
    path = raw.decode("latin-1").partition("?")[0]
    if not path.startswith(_SESSIONS):
        path = scope["path"]
    if not path.startswith(_SESSIONS):
        return None
    rest = path.removeprefix(_SESSIONS)
    before, _, last = rest.rpartition("/")
    return unquote(before if last in ACTIONS and "/" in rest else rest)


def _is_guarded(path: str) -> bool:
    return path == _GUARDED or path.startswith(f"{_GUARDED}/")


def _bearer(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
