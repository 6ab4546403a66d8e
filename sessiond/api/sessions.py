"""Routes of sessions."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from sessiond.api.callers import After, IdempotencyKey, SessionPath, Tenant, Wait, Wished
from sessiond.api.models import (
    DeleteOut,
    EventsOut,
    ForkIn,
    ListQuery,
    OperationOut,
    ResumeOut,
    SessionIn,
    SessionOut,
    SessionPatch,
    SessionsOut,
    SnapshotOut,
    SnapshotsOut,
    SuspendOut,
    report_out,
)
from sessiond.api.models_turns import ProbeOut, TicketIn, TicketOut
from sessiond.api.problems import result_response
from sessiond.domain.cursors import parse_cursor
from sessiond.domain.ids import parse_session_id
from sessiond.domain.session import OnEvicted, Operation, OperationStatus
from sessiond.service.catalogue import Changes, Wanted
from sessiond.service.fork import ForkWish
from sessiond.service.services import Services

_STARTED: dict[int | str, dict[str, Any]] = {
    202: {"model": OperationOut, "description": "It goes on; see Location."}
}


def sessions_router(services: Services, wait_default_s: float) -> APIRouter:
    """Return the routes below ``/v1/sessions``."""
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"])
    _add_catalogue(router, services)
    _add_history(router, services)
    _add_turns(router, services)
    _add_long_calls(router, services, wait_default_s)
    return router


def _add_catalogue(router: APIRouter, services: Services) -> None:
    catalogue = services.catalogue

    @router.post("", status_code=201)
    async def create_session(
        tenant: Tenant, body: SessionIn, response: Response, idempotency_key: IdempotencyKey = ""
    ) -> SessionOut:
        """Create a session. Its id names it from now on; nothing is stored yet."""
        wanted = None if body.session_id is None else parse_session_id(body.session_id)
        options = Changes(
            idle_timeout_s=body.idle_timeout_s,
            ttl_s=body.ttl_s,
            pinned=body.pinned,
            on_evicted=body.on_evicted,
            plan_policy=body.plan_policy,
            objective_s=body.objective_s,
        )
        view = await catalogue.create(tenant, wanted, body.model, key=idempotency_key, **options)
        response.headers["Location"] = f"/v1/sessions/{view.session.session_id}"
        return SessionOut.of(view)

    @router.get("")
    async def list_sessions(tenant: Tenant, query: Annotated[ListQuery, Query()]) -> SessionsOut:
        """List sessions that are not deleted, ordered by id."""
        wanted = Wanted(query.model, query.has_snapshot, query.pinned)
        return SessionsOut.of(await catalogue.page(tenant, wanted, query.after, query.limit))

    @router.get("/{session_id}")
    async def show_session(tenant: Tenant, session_id: SessionPath) -> SessionOut:
        """Show a session: its state, its newest snapshot, its newest outcome."""
        return SessionOut.of(await catalogue.show(tenant, session_id))

    @router.patch("/{session_id}")
    async def change_session(
        tenant: Tenant, session_id: SessionPath, body: SessionPatch
    ) -> SessionOut:
        """Change how a session is looked after: what is left out stays as it is."""
        return SessionOut.of(await catalogue.change(tenant, session_id, body.changes()))


def _add_history(router: APIRouter, services: Services) -> None:
    catalogue = services.catalogue

    @router.get("/{session_id}/snapshots")
    async def list_snapshots(tenant: Tenant, session_id: SessionPath) -> SnapshotsOut:
        """List a session's snapshots, oldest first."""
        found = await catalogue.snapshots(tenant, session_id)
        return SnapshotsOut(snapshots=[SnapshotOut.model_validate(one) for one in found])

    @router.get("/{session_id}/events")
    async def list_events(
        tenant: Tenant,
        session_id: SessionPath,
        after: After = "0",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> EventsOut:
        """Read a session's audit trail, also after it was deleted.

        Answers 409, events_reset, if the registry does not know the event to go on after.
        """
        number = await services.feed.number_of(tenant, parse_cursor(after))
        return EventsOut.of(await catalogue.events(tenant, session_id, number, limit))


def _add_turns(router: APIRouter, services: Services) -> None:
    @router.post("/{session_id}/ticket")
    async def make_ticket(
        tenant: Tenant, session_id: SessionPath, body: TicketIn | None = None
    ) -> TicketOut:
        """Get what makes one request to vLLM a turn of the session; valid for minutes.

        With "continue", also a prompt that begins with the session's exact tokens. Its request
        must have the messages, tools and template arguments that were given here.
        """
        chat = body.continues.chat() if body and body.continues else None
        model = body.model if body else ""
        return TicketOut.of(await services.turns.ticket(tenant, session_id, chat, model))

    @router.get("/{session_id}/probe")
    async def probe_session(
        tenant: Tenant,
        session_id: SessionPath,
        engine: Annotated[
            str, Query(max_length=512, description="Left out: the one that would serve it.")
        ] = "",
    ) -> ProbeOut:
        """Ask whether the session would resume on an engine, and why not; changes nothing."""
        return ProbeOut.of(await services.prober.probe(tenant, session_id, engine))


def _add_long_calls(router: APIRouter, services: Services, wait_default_s: float) -> None:
    lifecycle = services.lifecycle

    async def ended(operation: Operation, wait_s: float | None) -> JSONResponse:
        operation = await services.operations.wait(
            operation, wait_default_s if wait_s is None else wait_s
        )
        return operation_response(operation, services.operations.queue_position(operation))

    @router.post("/{session_id}/suspend", response_model=SuspendOut, responses=_STARTED)
    async def suspend_session(
        tenant: Tenant,
        session_id: SessionPath,
        wait: Wait = None,
        on_evicted: Annotated[
            OnEvicted | None,
            Query(
                description="For this call, instead of the session's own. A suspend that runs "
                "already and does something else answers 409, operation_in_progress."
            ),
        ] = None,
        idempotency_key: IdempotencyKey = "",
    ) -> JSONResponse:
        """Write the session's KV to the store. A turn that arrives meanwhile is served."""
        operation = await lifecycle.suspend(tenant, session_id, idempotency_key, on_evicted)
        return await ended(operation, wait)

    @router.post("/{session_id}/resume", response_model=ResumeOut, responses=_STARTED)
    async def resume_session(
        tenant: Tenant,
        session_id: SessionPath,
        wish: Wished,
        wait: Wait = None,
        idempotency_key: IdempotencyKey = "",
    ) -> JSONResponse:
        """Bring the session's KV back into an engine, and say what really happened.

        Where computing the context again is likely to be ready earlier, nothing is loaded: the
        outcome is recomputed, with the reason and both times. The next turn then computes it.
        """
        operation = await lifecycle.resume(tenant, session_id, idempotency_key, wish)
        return await ended(operation, wait)

    @router.post(
        "/{session_id}/fork", status_code=201, response_model=SessionOut, responses=_STARTED
    )
    async def fork_session(
        tenant: Tenant,
        session_id: SessionPath,
        body: ForkIn | None = None,
        wait: Wait = None,
        idempotency_key: IdempotencyKey = "",
    ) -> JSONResponse:
        """Begin a new session with a snapshot of this one: it shares all its chunks.

        It inherits model, idle timeout, TTL and on_evicted, and is not pinned. From then on each
        lives by itself: whatever becomes of one leaves the other whole.
        """
        given = body or ForkIn()
        wanted = None if given.session_id is None else parse_session_id(given.session_id)
        wish = ForkWish(wanted, given.generation)
        operation = await services.forker.fork(tenant, session_id, wish, idempotency_key)
        answer = await ended(operation, wait)
        if answer.status_code != HTTPStatus.OK:
            return answer
        view = await services.catalogue.show(tenant, operation.session_id)
        location = {"Location": f"/v1/sessions/{operation.session_id}"}
        shown = SessionOut.of(view).model_dump(mode="json")
        return JSONResponse(shown, HTTPStatus.CREATED, headers=location)

    @router.delete("/{session_id}", response_model=DeleteOut, responses=_STARTED)
    async def delete_session(
        tenant: Tenant, session_id: SessionPath, wait: Wait = None
    ) -> JSONResponse:
        """Delete a session with all its snapshots. Deleting it again finishes what was cut off."""
        return await ended(await lifecycle.delete(tenant, session_id), wait)


def operation_response(operation: Operation, queue_position: int | None = None) -> JSONResponse:
    """Return the report of an operation that has ended, or 202 with where to ask."""
    if operation.status is OperationStatus.SUCCEEDED:
        return JSONResponse(report_out(operation))
    address = f"/v1/operations/{operation.operation_id}"
    if operation.status is OperationStatus.FAILED:
        return result_response(operation.result or {}, address)
    body = OperationOut.of(operation, queue_position).model_dump(mode="json")
    return JSONResponse(body, 202, headers={"Location": address})
