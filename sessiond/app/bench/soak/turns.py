"""Turns of a session, through the gateway or with a ticket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from sessiond.app.bench.soak.events import UNKNOWN, Heard
from sessiond.app.bench.soak.script import Way
from sessiond.client import Client
from sessiond.client.connecting import HTTP_ARGUMENTS
from sessiond.domain.heads import LastTurn
from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.domain.turnoutcome import outcome_of_turn
from sessiond.engine.answers import read_answer
from sessiond.testing.restarts import CHUNK_TOKENS
from sessiond.testing.texts import Messages

_PATH: Final = "/v1/chat/completions"
_TIMEOUT_S: Final = 120.0


class RefusedError(Exception):
    """A turn was not answered.

    :ivar code: why
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Wanted:
    """One turn."""

    session_id: str
    way: Way
    messages: Messages
    reply_tokens: int
    hear_tokens: int = 0  #: after so many the client hangs up; 0: it does not

    @property
    def body(self) -> dict[str, Any]:
        """The call's body, without a model: the gateway knows it, as does a ticket."""
        return {
            "messages": list(self.messages),
            "max_tokens": self.reply_tokens,
            "temperature": 0,
            "logprobs": True,
            "return_token_ids": True,
            "stream": self.way is Way.STREAMED,
        }


class Caller:
    """One agent's connections: a new one for each call, so that a rest finds none open."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(**HTTP_ARGUMENTS, limits=limits, timeout=_TIMEOUT_S)
        self.client = Client(url, retries=0, http=self._http)

    def close(self) -> None:
        """Close what is open."""
        self._http.close()

    def turn(self, wanted: Wanted, heard: Heard) -> None:
        """Take a turn; *heard* gets what was answered, up to where it broke.

        :raises RefusedError: it was refused, or broke.
        :raises ApiError: there was no ticket for it.
        """
        try:
            if wanted.way is Way.DIRECT:
                self._direct(wanted, heard)
            else:
                self._through(wanted, heard)
        except httpx.ConnectError as error:
            raise RefusedError("unreachable") from error
        except httpx.TransportError as error:
            raise RefusedError("broken") from error

    def _through(self, wanted: Wanted, heard: Heard) -> None:
        headers = {"x-session-id": wanted.session_id}
        if wanted.way is Way.CONTINUED:
            headers["x-sessiond-continue"] = "1"
        url = f"{self.client.url}{_PATH}"
        with self._http.stream("POST", url, json=wanted.body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RefusedError(_code(answer))
            if wanted.way is not Way.STREAMED:
                answer.read()
                heard.take(answer.json())
                heard.outcome = answer.headers.get("x-sessiond-outcome", UNKNOWN)
                return
            for line in answer.iter_lines():
                heard.hear(line)
                if wanted.hear_tokens and len(heard.tokens) >= wanted.hear_tokens:
                    return
        if not heard.ended:
            raise RefusedError("broken")

    def _direct(self, wanted: Wanted, heard: Heard) -> None:
        ticket = self.client.ticket(wanted.session_id)
        given = {
            "model": ticket.engine.model,
            "cache_salt": ticket.cache_salt,
            "kv_transfer_params": ticket.kv_transfer_params,
        }
        answer = self._http.post(f"{ticket.engine.url}{_PATH}", json={**wanted.body, **given})
        if answer.status_code != httpx.codes.OK:
            raise RefusedError(_code(answer))
        body = answer.json()
        heard.take(body)
        heard.outcome = outcome_of(body)


def outcome_of(body: Mapping[str, Any]) -> str:
    """Return what an engine's own answer tells of a turn, in the gateway's words."""
    told = (body.get("kv_transfer_params") or {}).get(ANSWER_PARAM)
    if not told:
        return UNKNOWN
    answer = read_answer(body)
    turn = LastTurn(
        ended_unix_s=0.0,
        split=answer.split if "split" in told else None,
        tokens_total=told.get("tokens_total") or 0,
        diverged_at_token=told.get("diverged_at_token"),
    )
    outcome = outcome_of_turn(turn, CHUNK_TOKENS).outcome
    return outcome.value if outcome else UNKNOWN


def _code(answer: httpx.Response) -> str:
    """Return sessiond's code of an error, or vLLM's status."""
    try:
        answer.read()
        body = answer.json()
    except ValueError:
        return f"status_{answer.status_code}"
    error = body.get("error") or {}
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else f"vllm_{answer.status_code}"
