"""What is written, what of it is read, and what may still be written today. All of it blocks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import InvalidInputError, RegistryUnavailableError
from sessiond.domain.worth import WriteBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import SnapshotSummary
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)
_SWITCH: Final = "write_budget"


def record(
    context: Context,
    session: Session,
    summary: SnapshotSummary,
    is_there: Callable[[], bool] | None = None,
) -> bool:
    """Tell the registry of a committed snapshot, and count what was written for it, once.

    Returns whether it was new to the registry.

    :param is_there: whether the store still has it, for one that was found there
    :raises SessionNotFoundError: there is no such session, or it is deleted.
    :raises RegistryUnavailableError: the registry does not answer.
    """
    added = context.registry.record_snapshot(
        session.tenant, session.session_id, summary, session.created_unix_s, is_there
    )
    if added and summary.new_bytes:
        _count(context, summary.new_bytes)
    return added


def _count(context: Context, new_bytes: int) -> None:
    context.observer.written(new_bytes)
    if not context.limits.write_bytes_per_day:
        return
    now = context.now()

    def spent(value: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
        return _read(context, value).spend(new_bytes, now).as_json()

    try:
        context.registry.revise_switch(_SWITCH, spent, now)
    except RegistryUnavailableError as error:
        # The snapshot is there and recorded: its suspend has not failed.
        _log.warning("what a snapshot has written was not counted: %s", error.message)


def left_bytes(context: Context) -> float:
    """Return how much may be written now; under 0 if more was already.

    :raises RegistryUnavailableError: the registry does not answer.
    """
    if not context.limits.write_bytes_per_day:
        return WriteBudget().left(context.now())
    return _read(context, context.registry.read_switch(_SWITCH)).left(context.now())


def was_read(context: Context, session: Session) -> None:
    """Count what was written of a session whose snapshot was loaded, once."""
    try:
        unread_bytes = context.registry.read_snapshots(session.tenant, session.session_id)
    except RegistryUnavailableError as error:
        _log.warning("that a snapshot was read was not counted: %s", error.message)
        return
    context.observer.settled(unread_bytes, read=True)


def _read(context: Context, value: dict[str, JsonValue] | None) -> WriteBudget:
    budget = WriteBudget(context.limits.write_bytes_per_day)
    try:
        return budget if value is None else budget.read(value)
    except InvalidInputError:
        _log.warning("what was written lately cannot be read, and is counted anew")
        return budget
