"""Events of the caller's tenant as a stream (server-sent events)."""

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sessiond.api.callers import After, Tenant
from sessiond.domain.canonical import JsonValue
from sessiond.domain.cursors import START, Cursor, cursor_of, parse_cursor
from sessiond.domain.errors import EventsResetError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId, parse_session_id
from sessiond.domain.session import Event
from sessiond.service.feed import Batch, Interest, Listener
from sessiond.service.services import Services

_MEDIA_TYPE: Final = "text/event-stream"
#: After which a client that lost the stream comes back.
_RETRY_MS: Final = 1000
_EXAMPLE: Final = """\
id: 41-9f86d081884c
event: suspended
data: {"event_id":41,"cursor":"41-9f86d081884c","session_id":"agent-7","kind":"suspended",\
"at_unix_s":1800000000.0,"detail":{}}

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
        after: After = "",
        last_event_id: Annotated[
            str, Header(description="The same, as clients of event streams send it; goes first.")
        ] = "",
    ) -> StreamingResponse:
        """Follow the events of all the caller's sessions: none is skipped, each has its id.

        Ends when the daemon does; whoever comes back with the last id goes on behind it, at any
        daemon of the registry. Without any, only what happens from now on is told. Where the
        registry does not know the event of that id, because it was built anew, is an older copy, or
        lost its last moment in a power cut, a message of kind events_reset says so, and all
        events there are follow from the first.
        """
        wanted = None if session_id is None else parse_session_id(session_id)
        interest = Interest(tenant, wanted, frozenset(kind or ()))
        seen = last_event_id or after
        listener = await services.feed.listen(interest, parse_cursor(seen) if seen else None)
        return _EventStream(listener)

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
    yield f": sessiond\nid: {listener.reached}\nretry: {_RETRY_MS}\n\n"
    async for batch in listener.batches():
        yield _text(batch)


def _text(batch: Batch) -> str:
    if batch.lost is not None:
        return _message(START, _reset(batch.lost))
    if not batch.events:
        # Without data it is no message; the id still counts as seen.
        return f": nothing new\nid: {batch.reached}\n\n"
    return "".join(_message(cursor_of(event), event) for event in batch.events)


def _reset(lost: Cursor) -> Event:
    """Return what is told where a listener's place is lost: an event of no session."""
    detail: dict[str, JsonValue] = {"after": str(lost)}
    return Event(0, DEFAULT_TENANT, SessionId(""), EventsResetError.code, time.time(), detail)


def _message(cursor: Cursor, event: Event) -> str:
    told = {
        "event_id": event.event_id,
        "cursor": str(cursor),
        "session_id": event.session_id,
        "kind": event.kind,
        "at_unix_s": event.at_unix_s,
        "detail": event.detail,
    }
    data = json.dumps(told, separators=(",", ":"))
    return f"id: {cursor}\nevent: {event.kind}\ndata: {data}\n\n"
