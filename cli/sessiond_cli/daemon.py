"""The daemon, over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from sessiond_cli.exits import (
    DAEMON_UNREACHABLE_CODE,
    NOT_SESSIOND_CODE,
    USAGE_CODE,
    exit_status,
)
from sessiond_cli.failures import CommandError

if TYPE_CHECKING:
    from types import TracebackType

Answer = dict[str, Any]
Query = Mapping[str, str | int | float | bool]

_CONNECT_TIMEOUT_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 60.0
_NO_DAEMON_HINT: Final = "Start it with 'sessiond serve', or say where it is with --url."
#: Where the daemon's own hint speaks of HTTP.
_OUR_HINTS: Final = {"unauthorized": "Give a token with SESSIOND_TOKEN or --token."}
_NOT_OURS_HINT: Final = "Check --url: something else seems to listen there."


class Daemon:
    """A connection to one daemon. Every call returns a JSON object or raises CommandError."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        # No proxy and no .netrc: what is set for the web must not see or replace the token.
        self._http = httpx.Client(
            base_url=_checked_url(url),
            headers=_headers(token),
            trust_env=False,
            verify=ssl.create_default_context(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, query: Query | None = None) -> Answer:
        """Read *path*."""
        return self._answer(self._send("GET", path, query=query))

    def post(self, path: str, body: Answer, *, timeout_s: float | None) -> Answer:
        """Send *body* to *path*; ``timeout_s=None`` waits as long as it takes."""
        return self._answer(self._send("POST", path, body=body, timeout_s=timeout_s))

    def patch(self, path: str, body: Answer) -> Answer:
        """Change *path*."""
        return self._answer(self._send("PATCH", path, body=body))

    def begin(
        self, path: str, key: str, wait_s: float, query: Query | None = None
    ) -> tuple[Answer, bool]:
        """Begin a long call, or ask for the one that was begun with this idempotency *key*.

        :return: the report and ``True``, or the running operation and ``False``
        """
        response = self._send(
            "POST",
            path,
            query={"wait": wait_s, **(query or {})},
            headers={"Idempotency-Key": key},
            timeout_s=wait_s + _ANSWER_TIMEOUT_S,
        )
        return self._answer(response), response.status_code != httpx.codes.ACCEPTED

    def _send(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Answer | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = _ANSWER_TIMEOUT_S,
    ) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S)
        try:
            return self._http.request(
                method, path, params=query, json=body, headers=headers, timeout=timeout
            )
        except httpx.ConnectError as error:
            raise CommandError(
                DAEMON_UNREACHABLE_CODE, f"No daemon answers at {self._url}.", _NO_DAEMON_HINT
            ) from error
        except httpx.HTTPError as error:
            raise CommandError(
                DAEMON_UNREACHABLE_CODE,
                f"The daemon at {self._url} did not answer: {str(error) or type(error).__name__}.",
                "What it has begun goes on; 'sessionctl show' tells how it ended.",
            ) from error

    def _answer(self, response: httpx.Response) -> Answer:
        body = _json_object(response)
        if body is not None and response.is_success:
            return body
        code = body.get("code") if body else None
        if body is None or not isinstance(code, str):
            raise CommandError(
                NOT_SESSIOND_CODE,
                f"{self._url} answered {response.status_code}, not as sessiond does.",
                _NOT_OURS_HINT,
            )
        message = str(body.get("detail") or body.get("title") or code)
        hint = _OUR_HINTS.get(code) or str(body.get("hint") or "")
        raise CommandError(code, message, hint, exit_status(code, response.status_code))


def _json_object(response: httpx.Response) -> Answer | None:
    try:
        body = response.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CommandError(USAGE_CODE, f"--url is not valid: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CommandError(USAGE_CODE, "--url must begin with http:// or https:// and a host.")
    if parsed.userinfo:
        raise CommandError(USAGE_CODE, "--url must not hold a password: give --token instead.")
    return parsed


def _headers(token: str) -> dict[str, str]:
    if not token:
        return {}
    if not token.isascii() or not token.isprintable():
        raise CommandError(USAGE_CODE, "--token must be printable ASCII characters.")
    return {"Authorization": f"Bearer {token}"}
