"""Is every session still there, and every snapshot that was acknowledged? After the soak."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Final, TypeVar

from sessiond.app.bench.soak.ledger import Promise
from sessiond.client import ApiError, Client, ResumeReport

_GONE: Final = "session_not_found"
_WHOLE: Final = frozenset({"restored", "warm"})
#: A turn that nobody had stored died with its engine: the snapshot is whole all the same.
_PROMISED_BY_NOBODY: Final = "engine_lost_kv"
#: What ends by itself, after a moment: work that was begun for somebody who has left.
_PASSING: Final = frozenset(
    {"operation_in_progress", "turn_in_flight", "ram_tier_busy", "head_stale", "identity_pending"}
)
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.3
_T = TypeVar("_T")


@dataclass(frozen=True)
class Found:
    """What the daemon tells of a session that was promised."""

    created_unix_s: float | None  #: ``None``: it does not know it
    generation: int = 0  #: of its newest snapshot; 0 without one
    outcome: str = ""  #: of a resume; empty if there was nothing to resume
    why: str = ""


def judge(promise: Promise, found: Found) -> str:
    """Return why a session is lost, in words; empty: it is not."""
    if found.created_unix_s is None:
        return "the daemon does not know it"
    if found.created_unix_s != promise.created_unix_s:
        return "it was lost, and another one began under its name"
    if found.generation < promise.generation:
        return f"snapshot {promise.generation} was acknowledged, the newest is {found.generation}"
    if promise.generation and found.outcome not in _WHOLE:
        return f"its snapshot cannot be resumed: {found.outcome or 'refused'}, {found.why}"
    return ""


def lost(client: Client, promises: Iterable[Promise]) -> Iterator[str]:
    """Yield the sessions that are lost; every one that has a snapshot is resumed."""
    for promise in promises:
        why = judge(promise, _look(client, promise))
        if why:
            yield f"{promise.session_id}: {why}"


def finish_deletes(client: Client, promises: Iterable[Promise]) -> None:
    """Delete what should have been deleted when the daemon did not answer.

    :raises ApiError: that is not possible.
    """
    for promise in promises:
        if promise.deleting and not promise.deleted:
            _patient(partial(_delete, client, promise.session_id))
            promise.deleted = True


def revived(client: Client, promises: Iterable[Promise]) -> list[str]:
    """Return the sessions that were deleted and are there all the same."""
    listed = {session.session_id for session in client.list_sessions()}
    return [one.session_id for one in promises if one.deleted and one.session_id in listed]


def _look(client: Client, promise: Promise) -> Found:
    try:
        session = client.get_session(promise.session_id)
    except ApiError as error:
        if error.code == _GONE:
            return Found(None)
        raise
    generation = session.snapshot.generation if session.snapshot else 0
    if not promise.generation:
        return Found(session.created_unix_s, generation)
    try:
        report = _patient(partial(_resume, client, promise.session_id))
    except ApiError as error:
        return Found(session.created_unix_s, generation, "", error.code)
    why = ", ".join(f"{cause.reason} {cause.detail}".strip() for cause in report.causes)
    outcome = "restored" if _lacks_only_what_died(report) else report.outcome
    return Found(session.created_unix_s, generation, outcome, why)


def _resume(client: Client, session_id: str) -> ResumeReport:
    report = client.resume(session_id)
    if report.outcome not in _WHOLE and report.reason in _PASSING:
        raise ApiError(report.reason, f"The resume was {report.outcome}.")
    return report


def _lacks_only_what_died(report: ResumeReport) -> bool:
    reasons = {cause.reason for cause in report.causes}
    return report.outcome == "partial" and reasons == {_PROMISED_BY_NOBODY}


def _delete(client: Client, session_id: str) -> None:
    try:
        client.delete_session(session_id)
    except ApiError as error:
        if error.code != _GONE:
            raise


def _patient(call: Callable[[], _T]) -> _T:
    """Return what *call* returns; what passes is waited for.

    :raises ApiError: its error, also after a while.
    """
    until_s = monotonic() + _PATIENCE_S
    while True:
        try:
            return call()
        except ApiError as error:
            if error.code not in _PASSING or monotonic() > until_s:
                raise
        sleep(_PAUSE_S)
