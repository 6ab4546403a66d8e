"""One place that sends requests to vLLM servers and names what goes wrong."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from sessiond.domain.errors import (
    AttestationRefusedError,
    DeadlineExceededError,
    EngineRefusedError,
    EngineUnreachableError,
)
from sessiond.domain.tickets import TICKET_PARAM
from sessiond.engine.answers import Answer, read_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONNECT_TIMEOUT_S: Final = 5.0
_PROBE_TIMEOUT_S: Final = 2.0
_MAX_CONNECTIONS: Final = 64
_RUNNING: Final = re.compile(
    r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE
)
_SHOWN_CHARS: Final = 200
_PATHS: Final = re.compile(r"(?<![\w:/])/[^\s'\",;]+")


@dataclass(frozen=True)
class TicketedRequest:
    """One request that moves or reports KV; its single output token is thrown away."""

    url: str  #: the engine's base URL, without a trailing slash
    model: str
    prompt: Sequence[int]
    cache_salt: str
    ticket: str


def open_http(api_key: str = "") -> httpx.AsyncClient:
    """Return the HTTP client for all engines; the caller closes it.

    A proxy from the environment is not used: engines are reached directly.
    """
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
        trust_env=False,
    )


class EngineClient:
    """The daemon's side of the ticket protocol."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def send(self, request: TicketedRequest, deadline_s: float) -> Answer:
        """Send one ticketed request and return the connector's answer.

        Cancelling this call closes the connection, on which the engine aborts the request.

        :raises DeadlineExceededError: no answer within *deadline_s*.
        :raises EngineUnreachableError: no connection, or it was lost.
        :raises EngineRefusedError: the engine answered with an error.
        :raises EngineWithoutConnectorError: the answer has no part of ours.
        """
        body = {
            "model": request.model,
            "prompt": list(request.prompt),
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": request.cache_salt,
            "kv_transfer_params": {TICKET_PARAM: request.ticket},
        }
        return read_answer(await self.post(f"{request.url}/v1/completions", body, deadline_s))

    async def post(self, url: str, body: Mapping[str, object], deadline_s: float) -> object:
        """Send JSON and return the JSON of the answer.

        :raises DeadlineExceededError: no answer within *deadline_s*.
        :raises EngineUnreachableError: no connection, or it was lost.
        :raises EngineRefusedError: the engine answered with an error, or no JSON.
        """
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._http.post(url, json=body)
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"The engine did not answer within {deadline_s:g} s; it may be paused or asleep."
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachableError from error
        return _json(response)

    async def reset_caches(self, url: str, deadline_s: float) -> bool:
        """Empty the engine's VRAM and RAM tiers; what runs there begins anew.

        :return: whether it could; while requests hold KV that is on its way it cannot
        :raises DeadlineExceededError: no answer within *deadline_s*.
        :raises EngineUnreachableError: no connection, or it was lost.
        :raises AttestationRefusedError: it offers no such call, which is one of development mode.
        :raises EngineRefusedError: it answered with another error.
        """
        query = {"reset_running_requests": "true", "reset_external": "true"}
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._http.post(f"{url}/reset_prefix_cache", params=query)
        except TimeoutError as error:
            raise DeadlineExceededError("The engine did not reset its caches.") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachableError from error
        if response.status_code == httpx.codes.NOT_FOUND:
            raise AttestationRefusedError(
                "The engine's caches cannot be reset: it offers no /reset_prefix_cache, which "
                "vLLM has in development mode only. A restart of the engine turns its tier on."
            )
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            return False
        body = _json(response)
        return isinstance(body, dict) and body.get("success") is True

    async def requests_running(self, url: str) -> int:
        """Return how many requests an engine works on or has waiting; 0 if it does not tell.

        :raises EngineUnreachableError: it does not answer within 2 s.
        """
        try:
            response = await self._http.get(f"{url}/metrics", timeout=_PROBE_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineUnreachableError from error
        if response.status_code != httpx.codes.OK:
            return 0
        return round(sum(float(value) for value in _RUNNING.findall(response.text)))

    async def answers_http(self, url: str) -> bool:
        """Whether some server answers HTTP at *url* within 2 s."""
        try:
            await self._http.get(f"{url}/health", timeout=_PROBE_TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
        return True


def _json(response: httpx.Response) -> object:
    if response.status_code != httpx.codes.OK:
        raise EngineRefusedError(
            f"The engine answered with HTTP {response.status_code}{_reason(response)}."
        )
    try:
        body: object = response.json()
    except ValueError as error:
        raise EngineRefusedError("The engine's answer is not JSON.") from error
    return body


def _reason(response: httpx.Response) -> str:
    """Return what vLLM says of its error, short and without paths of its machine."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    shown = _PATHS.sub("…", str(message))[:_SHOWN_CHARS].rstrip(".")
    return f": {shown}"
