"""The asynchronous client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import httpx

from sessiond.client import calls
from sessiond.client.answers import DeleteReport, Operation, ResumeReport, SuspendReport
from sessiond.client.connecting import DEFAULT_URL, HTTP_ARGUMENTS, authorization, checked_url
from sessiond.client.errors import ApiError, OperationRunningError, problem_error
from sessiond.client.repeating import (
    RETRIES,
    STREAM_SILENCE_S,
    Attempts,
    Patience,
    Reconnects,
    json_of,
    timeouts,
)
from sessiond.client.scope import AsyncSessionScope, Ends
from sessiond.client.sse import EventReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from sessiond.client.answers import Event, Probe, Session, Snapshot, Ticket
    from sessiond.client.answers_engines import DrainReport, Engines, Pause, Undrained
    from sessiond.client.calls import Call
    from sessiond.client.options import SessionChanges, SessionOptions

_T = TypeVar("_T")


class AsyncClient:
    """Calls one daemon. Use it as a context, or close it. Belongs to one event loop.

    Every call raises :class:`~sessiond.client.ApiError`. One that found nobody, or a daemon that
    cannot serve it now, is sent again a few times. None of them makes anything twice.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str = "",
        *,
        retries: int = RETRIES,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Create one; nothing is sent yet.

        :param token: a bearer token, if the daemon has tokens configured
        :param http: connections to use instead of its own; closing them is the caller's
        """
        self.url, self._token, self._retries = checked_url(url), token, retries
        self._authorization = authorization(token)
        self._owns_http = http is None
        self._http = http or httpx.AsyncClient(**HTTP_ARGUMENTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._http.aclose()

    @property
    def openai_arguments(self) -> dict[str, Any]:
        """The arguments of ``openai.OpenAI`` (or ``AsyncOpenAI``) for calls of the gateway."""
        return {"base_url": f"{self.url}/v1", "api_key": self._token or "none"}

    async def create_session(
        self,
        session_id: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """Create a session; its id is made by the daemon if none is given."""
        return await self._run(calls.create_session({"session_id": session_id, **options}))

    async def get_session(self, session_id: str) -> Session:
        """Show a session."""
        return await self._run(calls.get_session(session_id))

    async def list_sessions(
        self,
        *,
        model: str | None = None,
        has_snapshot: bool | None = None,
        pinned: bool | None = None,
    ) -> AsyncIterator[Session]:
        """Yield the sessions that match, ordered by id."""
        filters = {"model": model, "has_snapshot": has_snapshot, "pinned": pinned}
        after: str | None = None
        while True:
            page = await self._run(calls.list_sessions(filters, after))
            for session in page.sessions:
                yield session
            after = page.next_after
            if after is None:
                return

    async def change_session(self, session_id: str, **changes: Unpack[SessionChanges]) -> Session:
        """Change some options; ``None`` means the daemon's default."""
        return await self._run(calls.change_session(session_id, changes))

    async def delete_session(self, session_id: str, *, wait_s: float | None = None) -> DeleteReport:
        """Delete a session with all its snapshots; see :meth:`suspend` for *wait_s*."""
        patience = Patience(wait_s)
        begun = await self._run(calls.delete(session_id, patience.first_round_s()))
        return await self._report(begun, DeleteReport, patience)

    async def suspend(
        self, session_id: str, *, wait_s: float | None = None, on_evicted: str | None = None
    ) -> SuspendReport:
        """Write a session's KV to the store.

        :param on_evicted: what to do about KV that is gone, for this call: ``prefix``,
            ``recompute`` or ``skip``; ``None``: as the session says
        :param wait_s: how long to wait for the end; ``None``: as long as it takes
        :raises OperationRunningError: it has not ended in that time, and goes on.
        """
        patience = Patience(wait_s)
        begun = await self._run(calls.suspend(session_id, patience.first_round_s(), on_evicted))
        return await self._report(begun, SuspendReport, patience)

    async def resume(
        self, session_id: str, *, wait_s: float | None = None, plan_policy: str | None = None
    ) -> ResumeReport:
        """Bring a session's KV back into an engine; see :meth:`suspend` for *wait_s*.

        :param plan_policy: how to decide between loading and computing, for this call: ``auto``,
            ``always_load``, ``never_load`` or ``objective``; by default as the session says
        """
        patience = Patience(wait_s)
        begun = await self._run(calls.resume(session_id, patience.first_round_s(), plan_policy))
        return await self._report(begun, ResumeReport, patience)

    async def fork(
        self, session_id: str, new_id: str | None = None, *, generation: int | None = None
    ) -> Session:
        """Return a new session that begins with a snapshot of this one."""
        return await self._run(calls.fork(session_id, new_id, generation))

    async def probe(self, session_id: str, engine: str = "") -> Probe:
        """Tell whether a session would resume on an engine; changes nothing."""
        return await self._run(calls.probe(session_id, engine))

    async def snapshots(self, session_id: str) -> tuple[Snapshot, ...]:
        """Return a session's snapshots, oldest first."""
        return (await self._run(calls.snapshots(session_id))).snapshots

    async def events(self, session_id: str, *, after: int | str = 0) -> AsyncIterator[Event]:
        """Yield a session's events behind the cursor *after*, oldest first.

        :raises ApiError: ``events_reset``: the registry does not know the event of that cursor.
        """
        while True:
            page = (await self._run(calls.events(session_id, after))).events
            for event in page:
                yield event
            if not page:
                return
            after = page[-1].cursor

    async def stream_events(
        self,
        *,
        session_id: str | None = None,
        kinds: Sequence[str] = (),
        after: int | str | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the events of all sessions as they come, without end; close it to stop.

        A lost stream is found again, and goes on where it was. Where that place is lost, as in a
        registry that was built anew, an event of kind ``events_reset`` is yielded whatever *kinds*
        are, and then all from the beginning.

        :param after: the last cursor seen, 0: from the beginning, ``None``: from now on
        :raises UnreachableError: no daemon was found for a minute.
        """
        query = calls.events_query(session_id, kinds)
        reader, lost = EventReader("" if after is None else str(after)), Reconnects()
        while True:
            try:
                async with aclosing(self._stream(query, reader, lost)) as found:
                    async for event in found:
                        yield event
                pause_s = lost.pause_s(ConnectionError("The daemon ended the stream."))
            except (httpx.TransportError, ApiError) as error:
                pause_s = lost.pause_s(error)
            await asyncio.sleep(pause_s)

    async def ticket(
        self, session_id: str, *, model: str = "", chat: Mapping[str, Any] | None = None
    ) -> Ticket:
        """Return what makes one request that goes to vLLM directly a turn of the session.

        :param chat: the request's ``messages``, ``tools`` and ``chat_template_kwargs``, to
            continue the session's exact tokens where these have the same text
        """
        return await self._run(calls.ticket(session_id, model, chat))

    async def engines(self) -> Engines:
        """Return the running engines, and configured servers that are none of sessiond's."""
        return await self._run(calls.engines())

    async def drain(self, engine_id: str, *, deadline_s: float = 30.0) -> DrainReport:
        """Suspend the sessions of an engine before it ends. For operators."""
        return await self._run(calls.drain(engine_id, deadline_s))

    async def undrain(self, engine_id: str) -> Undrained:
        """Let an engine that was drained serve as any other. For operators."""
        return await self._run(calls.undrain(engine_id))

    async def pause(self, reason: str = "", *, until_unix_s: float | None = None) -> Pause:
        """Let no daemon of the registry suspend by itself, until a time. For operators."""
        return await self._run(calls.pause(reason, until_unix_s))

    async def unpause(self) -> bool:
        """Take a pause back; return whether there was one. For operators."""
        return (await self._run(calls.unpause())).was_paused

    async def operation(self, operation_id: str) -> Operation:
        """Return how far a long call is."""
        return await self._run(calls.operation(operation_id))

    async def wait(self, operation: Operation, *, wait_s: float | None = None) -> Operation:
        """Return an operation when it has ended, successfully or not.

        :raises OperationRunningError: it has not ended in *wait_s*.
        """
        return await self._ended(operation, Patience(wait_s))

    def session(
        self,
        session_id: str,
        *,
        suspend_on_exit: bool = False,
        resume_on_enter: bool = False,
        **options: Unpack[SessionOptions],
    ) -> AsyncSessionScope:
        """Return a context for work in a session, which is created if it is unknown.

        :param suspend_on_exit: suspend it at the end, also after an error
        :param resume_on_enter: bring its KV back at once, not with the first turn
        :param options: of a session that is created
        """
        ends = Ends(suspend_on_exit, resume_on_enter)
        return AsyncSessionScope(self, session_id, options, ends)

    async def _report(self, begun: _T | Operation, kind: type[_T], patience: Patience) -> _T:
        if not isinstance(begun, Operation):
            return begun
        return calls.report_of(await self._ended(begun, patience), kind)

    async def _ended(self, operation: Operation, patience: Patience) -> Operation:
        while not operation.has_ended:
            pause_s = patience.next_poll_s()
            if pause_s is None:
                raise OperationRunningError(operation)
            await asyncio.sleep(pause_s)
            operation = await self._run(calls.operation(operation.operation_id))
        return operation

    async def _run(self, call: Call[_T]) -> _T:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = await self._send(attempts.call)
            except httpx.TransportError as error:
                await asyncio.sleep(attempts.pause_after_loss_s(error))
                continue
            body = json_of(response)
            pause_s = attempts.pause_after_answer_s(response.status_code, body)
            if pause_s is None:
                return call.read(response.status_code, body)
            await asyncio.sleep(pause_s)

    async def _send(self, call: Call[Any]) -> httpx.Response:
        return await self._http.request(
            call.method,
            self.url + call.path,
            params=call.query,
            json=call.body,
            headers={**self._authorization, **call.headers},
            timeout=timeouts(call),
        )

    async def _stream(
        self, query: calls.Query, reader: EventReader, lost: Reconnects
    ) -> AsyncGenerator[Event, None]:
        async with self._http.stream(
            "GET",
            f"{self.url}/v1/events",
            params=query,
            headers={**self._authorization, **reader.begin()},
            timeout=STREAM_SILENCE_S,
        ) as response:
            if not response.is_success:
                await response.aread()
                raise problem_error(response.status_code, json_of(response))
            async for line in response.aiter_lines():
                lost.found()
                for event in reader.feed(line):
                    yield event
