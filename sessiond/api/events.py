"""Events of the caller's tenant as a stream (server-sent events)."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sessiond.api.callers import Tenant
from sessiond.api.models import MAX_EVENT_ID
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.ids import parse_session_id
from sessiond.domain.session import Event
from sessiond.service.feed import Batch, Interest, Listener
from sessiond.service.services import Services

_MEDIA_TYPE: Final = "text/event-stream"
#: After which a client that lost the stream comes back.
_RETRY_MS: Final = 1000
_MAX_DIGITS: Final = len(str(MAX_EVENT_ID))
_EXAMPLE: Final = """\
id: 41
event: suspended
data: {"event_id":41,"session_id":"agent-7","kind":"suspended","at_unix_s":1800000000.0,"detail":{}}

"""
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One message for each event, with its kind as its name; a comment "
        "where nothing happened for a while.",
        "content": {_MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}


def events_router(services: Services) -> APIRouter:
    """Return the route ``/v1/events``."""
    router = APIRouter(tags=["events"])

    @router.get("/v1/events", response_class=StreamingResponse, responses=_STREAM)
    async def stream_events(
        tenant: Tenant,
        session_id: Annotated[str | None, Query(description="Only of this session.")] = None,
        kind: Annotated[
            list[str] | None,
            Query(max_length=32, description="Only of these kinds.", examples=[["suspended"]]),
        ] = None,
        after: Annotated[
            int | None,
            Query(
                ge=0,
                le=MAX_EVENT_ID,
                description="The last event id seen; 0: from the beginning. Left out: only what "
                "happens from now on.",
            ),
        ] = None,
        last_event_id: Annotated[
            str, Header(description="The same, as clients of event streams send it; goes first.")
        ] = "",
    ) -> StreamingResponse:
        """Follow the events of all the caller's sessions: none is skipped, each has its id.

        Ends when the daemon does; whoever comes back with the last id goes on behind it, at any
        daemon of the registry. Of a database that was lost and built anew, or lost its last
        moment in a power cut, ids may be given again: then begin with 0.
        """
        wanted = None if session_id is None else parse_session_id(session_id)
        interest = Interest(tenant, wanted, frozenset(kind or ()))
        seen = _parse_id(last_event_id) if last_event_id else after
        return _EventStream(await services.feed.listen(interest, seen))

    return router


class _EventStream(StreamingResponse):
    """Tells what a listener hears, and closes it."""

    def __init__(self, listener: Listener) -> None:
        # Proxies must not keep events back until they have more of them.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(_messages(listener), headers=headers, media_type=_MEDIA_TYPE)
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._listener.close()


async def _messages(listener: Listener) -> AsyncIterator[str]:
    yield f": sessiond\nid: {listener.reached_id}\nretry: {_RETRY_MS}\n\n"
    async for batch in listener.batches():
        yield _text(batch)


def _text(batch: Batch) -> str:
    if not batch.events:
        # Without data it is no message; the number still counts as seen.
        return f": nothing new\nid: {batch.reached_id}\n\n"
    return "".join(_message(event) for event in batch.events)


def _message(event: Event) -> str:
    told = {
        "event_id": event.event_id,
        "session_id": event.session_id,
        "kind": event.kind,
        "at_unix_s": event.at_unix_s,
        "detail": event.detail,
    }
    data = json.dumps(told, separators=(",", ":"))
    return f"id: {event.event_id}\nevent: {event.kind}\ndata: {data}\n\n"


def _parse_id(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or int(text) > MAX_EVENT_ID:
        raise InvalidInputError("Last-Event-ID is not the id of an event.")
    return int(text)
