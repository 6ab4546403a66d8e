"""Each call of the interface: what is sent, and what its answer means. Sends nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote

from sessiond.client.answers import (
    DeleteReport,
    Events,
    Operation,
    Probe,
    ResumeReport,
    Session,
    SessionPage,
    Snapshots,
    SuspendReport,
    Ticket,
)
from sessiond.client.answers_engines import DrainReport, Engines, Pause, Undrained, Unpaused
from sessiond.client.decoding import decode
from sessiond.client.errors import ApiError, told_error
from sessiond.domain.errors import InvalidSessionIdError
from sessiond.domain.ids import new_hex_id, parse_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")
Json = dict[str, Any]
Query = dict[str, str | int | float | bool | list[str]]

#: One HTTP call waits at most this long for a long call's end; then its operation is asked.
ROUND_S: Final = 20.0
_PAGE: Final = 500
_SESSIONS: Final = "/v1/sessions"
_ACCEPTED: Final = 202


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, which may be sent again as it is.

    :ivar read: makes the result of the status and the JSON of a good answer
    :ivar is_repeatable: whether it may be sent again after an answer was lost on its way
    :ivar wait_s: how long the daemon may take on purpose
    """

    method: str
    path: str
    read: Callable[[int, Any], T]
    query: Query = field(default_factory=dict)
    body: Json | None = None
    key: str = ""
    is_repeatable: bool = True
    wait_s: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """The headers that this call needs."""
        return {"Idempotency-Key": self.key} if self.key else {}

    def with_new_key(self) -> Call[T]:
        """Return the same call as a new attempt."""
        return replace(self, key=new_key()) if self.key else self


def new_key() -> str:
    """Return an idempotency key that nobody has used."""
    return f"client-{new_hex_id()}"


def create_session(options: Mapping[str, Any]) -> Call[Session]:
    """Create a session; options that are ``None`` are left out."""
    if options.get("session_id") is not None:
        _checked(options["session_id"])
    body = {name: value for name, value in options.items() if value is not None}
    return Call("POST", _SESSIONS, _as(Session), body=body, key=new_key())


def get_session(session_id: str) -> Call[Session]:
    """Show a session."""
    return Call("GET", _path(session_id), _as(Session))


def list_sessions(filters: Mapping[str, Any], after: str | None) -> Call[SessionPage]:
    """List sessions behind *after*; filters that are ``None`` are left out."""
    given = {**filters, "limit": _PAGE, "after": after}
    query = {name: value for name, value in given.items() if value is not None}
    return Call("GET", _SESSIONS, _as(SessionPage), query=query)


def change_session(session_id: str, changes: Mapping[str, Any]) -> Call[Session]:
    """Change a session; ``None`` is a value, and means the daemon's default."""
    return Call("PATCH", _path(session_id), _as(Session), body=dict(changes))


def fork(session_id: str, new_id: str | None, generation: int | None) -> Call[Session]:
    """Fork a session at a snapshot."""
    body = {"session_id": None if new_id is None else _checked(new_id), "generation": generation}
    return Call("POST", _path(session_id, "fork"), _as(Session), body=body, key=new_key())


def snapshots(session_id: str) -> Call[Snapshots]:
    """List a session's snapshots."""
    return Call("GET", _path(session_id, "snapshots"), _as(Snapshots))


def events(session_id: str, after: int | str) -> Call[Events]:
    """Read a session's audit trail behind *after*."""
    query: Query = {"after": after, "limit": _PAGE}
    return Call("GET", _path(session_id, "events"), _as(Events), query=query)


def events_query(session_id: str | None, kinds: Sequence[str]) -> Query:
    """Return what a stream of events is asked for."""
    query: Query = {"kind": list(kinds)} if kinds else {}
    if session_id is not None:
        query["session_id"] = _checked(session_id)
    return query


def ticket(session_id: str, model: str, chat: Mapping[str, Any] | None) -> Call[Ticket]:
    """Get a ticket."""
    body: Json = {"model": model} | ({"continue": dict(chat)} if chat is not None else {})
    return Call("POST", _path(session_id, "ticket"), _as(Ticket), body=body)


def probe(session_id: str, engine: str) -> Call[Probe]:
    """Ask what a resume would find."""
    query: Query = {"engine": engine} if engine else {}
    return Call("GET", _path(session_id, "probe"), _as(Probe), query=query)


def suspend(
    session_id: str, wait_s: float, on_evicted: str | None
) -> Call[SuspendReport | Operation]:
    """Begin a suspend and wait a little for its end."""
    call = _long_call("POST", _path(session_id, "suspend"), SuspendReport, wait_s)
    return (
        call
        if on_evicted is None
        else replace(call, query={**call.query, "on_evicted": on_evicted})
    )


def resume(
    session_id: str, wait_s: float, plan_policy: str | None = None
) -> Call[ResumeReport | Operation]:
    """Begin a resume and wait a little for its end."""
    call = _long_call("POST", _path(session_id, "resume"), ResumeReport, wait_s)
    if plan_policy is None:
        return call
    return replace(call, query={**call.query, "plan_policy": plan_policy})


def delete(session_id: str, wait_s: float) -> Call[DeleteReport | Operation]:
    """Begin a delete and wait a little for its end."""
    return _long_call("DELETE", _path(session_id), DeleteReport, wait_s)


def operation(operation_id: str) -> Call[Operation]:
    """Show an operation."""
    return Call("GET", f"/v1/operations/{quote(operation_id, safe='')}", _as(Operation))


def engines() -> Call[Engines]:
    """List the engines."""
    return Call("GET", "/v1/engines", _as(Engines))


def drain(engine_id: str, deadline_s: float) -> Call[DrainReport]:
    """Suspend the sessions of an engine."""
    path = f"/v1/engines/{quote(engine_id, safe='')}/drain"
    body = {"deadline_s": deadline_s}
    return Call("POST", path, _as(DrainReport), body=body, wait_s=deadline_s)


def undrain(engine_id: str) -> Call[Undrained]:
    """Let an engine that was drained serve again."""
    return Call("POST", f"/v1/engines/{quote(engine_id, safe='')}/undrain", _as(Undrained))


def pause(reason: str, until_unix_s: float | None) -> Call[Pause]:
    """Let no daemon suspend by itself."""
    body = {"reason": reason, "until_unix_s": until_unix_s}
    return Call("POST", "/v1/admin/pause", _as(Pause), body=body)


def unpause() -> Call[Unpaused]:
    """Let the daemons suspend by themselves again."""
    return Call("POST", "/v1/admin/unpause", _as(Unpaused))


def report_of(ended: Operation, kind: type[T]) -> T:
    """Return the report of an operation.

    :raises ApiError: it failed.
    """
    result = ended.result or {}
    if ended.status != "succeeded":
        raise told_error(result, str(result.get("message", "")))
    ids = {"operation_id": ended.operation_id, "session_id": ended.session_id}
    return decode(kind, {**ids, **result})


def _long_call(method: str, path: str, kind: type[T], wait_s: float) -> Call[T | Operation]:
    def read(status: int, body: Any) -> T | Operation:  # noqa: ANN401 - JSON
        return decode(Operation, body) if status == _ACCEPTED else decode(kind, body)

    has_key = method == "POST"
    return Call(
        method,
        path,
        read,
        query={"wait": wait_s},
        key=new_key() if has_key else "",
        # A second DELETE would not find what the first one has deleted.
        is_repeatable=has_key,
        wait_s=wait_s,
    )


def _as(kind: type[T]) -> Callable[[int, Any], T]:
    def read(kind: type[T], _status: int, body: Any) -> T:  # noqa: ANN401 - JSON
        return decode(kind, body)

    return partial(read, kind)


def _path(session_id: str, action: str = "") -> str:
    path = f"{_SESSIONS}/{_checked(session_id)}"
    return f"{path}/{action}" if action else path


def _checked(session_id: str) -> str:
    try:
        return parse_session_id(session_id)
    except InvalidSessionIdError as error:
        raise ApiError(error.code, error.message, error.hint) from error
