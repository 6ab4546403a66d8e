"""An engine's answer on its way to the client."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import EngineLostError
from sessiond.domain.gateway import Headers, answered_headers

if TYPE_CHECKING:
    from starlette.types import Send

    from sessiond.domain.reasons import Cause
    from sessiond.domain.turnoutcome import TurnOutcome
    from sessiond.service.calls import Passage, Passed
    from sessiond.service.turnresults import TurnResults

_EVENT_STREAM: Final = b"text/event-stream"
_UNKNOWN: Final = "unknown"
_END_OF_EVENT: Final = b"\n\n"
#: How streams of responses begin.
_RESPONSE: Final = b"event: response."
#: vLLM sends the other two events of a response before its engine has the request.
_BEGUN: Final = re.compile(rb"^event: (?!response\.(?:created|in_progress)\b)", re.MULTILINE)
_LINE_BYTES: Final = 64  #: more than the names of these events take


async def send_answer(passed: Passed, results: TurnResults, send: Send) -> None:
    """Send all of an answer, with what is told of its turn.

    :raises EngineLostError: it ended before its end; what was sent so far has no end either.
    """
    passage, answer = passed.passage, passed.answer
    good = answer.status == HTTPStatus.OK
    try:
        if passage.ticket is not None and good and not _is_stream(answer.headers):
            await _send_whole(passed, results, send)
        else:
            await _send_parts(passed, results, send)
    except EngineLostError as error:
        await results.broken(passage, error)
        raise


async def _send_parts(passed: Passed, results: TurnResults, send: Send) -> None:
    """Send an answer as it comes; a stream gets a comment at its end."""
    passage, answer = passed.passage, passed.answer
    told = passage.ticket is not None and _is_stream(answer.headers)
    headers = [*answered_headers(answer.headers), *_plan_headers(passage, passage.causes)]
    if not told:  # a body whose length is known from the start keeps it
        headers += [(name, value) for name, value in answer.headers if name == b"content-length"]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    end = b""
    begin = _Begin()
    async for chunk in answer.chunks():
        if begin.is_seen(chunk):
            passed.restoring.close()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        end = (end + chunk)[-len(_END_OF_EVENT) :]
    last = b""
    if told and end == _END_OF_EVENT:
        last = _comment(passage, await results.recorded(passage))
    await send({"type": "http.response.body", "body": last, "more_body": False})


class _Begin:
    """Looks in a stream for the first sign that its engine has begun."""

    def __init__(self) -> None:
        self._end = b""  # of the part before, where a line may go on
        self._seen: bool | None = None

    def is_seen(self, chunk: bytes) -> bool:
        """Whether there was one up to this part."""
        if self._seen is None:
            opening = chunk[: len(_RESPONSE)]
            self._seen = not _RESPONSE.startswith(opening)
        if not self._seen:
            lines, mark, end = (self._end + chunk).rpartition(b"\n")
            self._seen = _BEGUN.search(lines + mark) is not None
            self._end = end[:_LINE_BYTES]
        return self._seen


async def _send_whole(passed: Passed, results: TurnResults, send: Send) -> None:
    """Send an answer that is not streamed: what became of the turn comes before its body."""
    passage, answer = passed.passage, passed.answer
    data = await answer.read()
    passed.restoring.close()
    data, outcome = await results.answered(passage, data)
    outcome = outcome or await results.recorded(passage)
    headers = [
        *answered_headers(answer.headers),
        *_plan_headers(passage, outcome.causes or passage.causes),
        *_outcome_headers(outcome),
        (b"content-length", str(len(data)).encode()),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": data, "more_body": False})


def _is_stream(headers: Headers) -> bool:
    kinds = (value for name, value in headers if name == b"content-type")
    return any(kind.lower().startswith(_EVENT_STREAM) for kind in kinds)


def _plan_headers(passage: Passage, causes: tuple[Cause, ...]) -> Headers:
    told = {
        b"x-sessiond-plan": passage.plan,
        b"x-sessiond-reason": causes[0].reason.value if causes else "",
        b"x-sessiond-engine": passage.engine.engine_id,
        b"x-sessiond-continue": passage.continued,
    }
    return [(name, value.encode()) for name, value in told.items() if value]


def _outcome_headers(outcome: TurnOutcome) -> Headers:
    told: dict[bytes, str] = {b"x-sessiond-outcome": _UNKNOWN}
    if outcome.outcome is not None:
        told = {
            b"x-sessiond-outcome": outcome.outcome.value,
            b"x-sessiond-tokens-total": str(outcome.tokens_total),
            b"x-sessiond-tokens-restored": str(outcome.tokens_restored),
            b"x-sessiond-tokens-disk": str(outcome.disk_tokens),
        }
    return [(name, value.encode()) for name, value in told.items()]


def _comment(passage: Passage, outcome: TurnOutcome) -> bytes:
    """Return a comment of the stream's form, which clients pass over."""
    assert passage.ticket is not None
    known = outcome.outcome is not None
    causes = outcome.causes or passage.causes
    told = {
        "plan": passage.plan,
        "outcome": outcome.outcome.value if outcome.outcome else _UNKNOWN,
        "tokens_total": outcome.tokens_total if known else None,
        "tokens_restored": outcome.tokens_restored if known else None,
        "tokens_disk": outcome.disk_tokens if known else None,
        "reason": causes[0].reason.value if causes else None,
        "session_id": passage.ticket.session.session_id,
        "turn_id": passage.ticket.permit.operation_id,
    }
    return f": sessiond {json.dumps(told)}\n\n".encode()
