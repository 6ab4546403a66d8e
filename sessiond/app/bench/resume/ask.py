"""One request for one token, with little work of the client's own in what is timed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from sessiond.app.bench.resume.sessions import Context
from sessiond.domain.tickets import ANSWER_PARAM
from sessiond.testing.stack import SERVED_NAME

_TIMEOUT_S = 300.0
_TOP = 5
#: Two requests that are computed together differ from one alone in the last bits.
_TOLERANCE_NATS = 0.1


class WrongTokenError(RuntimeError):
    """A restored context went on in another way than the same one in VRAM."""


@dataclass(frozen=True)
class Answer:
    """The first token of a turn."""

    seconds: float
    ended_s: float  #: of ``time.perf_counter``
    tokens: tuple[int, ...]  #: as many as were asked for
    steps: tuple[Mapping[str, float], ...]  #: for each, the log-probabilities of the most likely
    cached_tokens: int  #: as vLLM reports it
    split: Mapping[str, Any]  #: by sessiond's connector: which tokens came from where


def ask(port: int, context: Context, tokens: int = 1, **fields: object) -> Answer:
    """Send the context's prompt and wait for one token, or for more.

    :raises RuntimeError: the engine refuses it, or does not answer.
    """
    body = {
        "model": SERVED_NAME,
        "prompt": context.prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": _TOP,
        "return_token_ids": True,
        **fields,
    }
    data = json.dumps(body).encode()
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.connect()
        began_s = time.perf_counter()
        connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        ended_s = time.perf_counter()
    except (OSError, HTTPException) as error:
        raise RuntimeError(f"The engine does not answer: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"The engine answers {answer.status}: {text[:1000]!r}")
    return _read(json.loads(text), ended_s - began_s, ended_s)


def _read(value: Mapping[str, Any], seconds: float, ended_s: float) -> Answer:
    choice = value["choices"][0]
    told = (value.get("kv_transfer_params") or {}).get(ANSWER_PARAM) or {}
    details = value["usage"].get("prompt_tokens_details") or {}
    return Answer(
        seconds,
        ended_s,
        tuple(choice["token_ids"]),
        tuple(choice["logprobs"]["top_logprobs"]),
        int(details.get("cached_tokens") or 0),
        told.get("split") or {},
    )


def require_same(who: str, context: Context, found: Answer, reference: Answer) -> None:
    """Require exactly the tokens and log-probabilities that the same context in VRAM gave.

    :raises WrongTokenError: they differ.
    """
    mine, theirs = _steps(found), _steps(reference)
    places = range(max(len(mine), len(theirs)))
    at = next((at for at in places if mine[at : at + 1] != theirs[at : at + 1]), None)
    if at is not None:
        raise WrongTokenError(
            f"{who}, {context.name}: token {at} is {mine[at : at + 1]}, in VRAM "
            f"{theirs[at : at + 1]}."
        )


def require_close(who: str, context: Context, found: Answer, reference: Answer) -> None:
    """Require the same log-probabilities within a tolerance: others were computed beside it.

    :raises WrongTokenError: they differ by more.
    """
    mine, theirs = found.steps[0], reference.steps[0]
    for word in mine.keys() & theirs.keys():
        if abs(mine[word] - theirs[word]) > _TOLERANCE_NATS:
            require_same(who, context, found, reference)
    if not mine.keys() & theirs.keys():
        require_same(who, context, found, reference)


def _steps(answer: Answer) -> list[tuple[int, Mapping[str, float]]]:
    """Return the tokens with their log-probabilities."""
    return list(zip(answer.tokens, answer.steps, strict=True))
