"""Whether sessions that were suspended, or refused to be, come back: it is learned from each."""

from __future__ import annotations

import logging
from functools import reduce
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import InvalidInputError, RegistryUnavailableError
from sessiond.domain.returns import Returns, read_returns
from sessiond.service.writes import was_read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.returns import Kind
    from sessiond.domain.session import Session
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)
_SWITCH: Final = "returns"


def kind_of(session: Session) -> Kind:
    """Return with which others a session counts."""
    return session.tenant, session.model


def returns(context: Context) -> Returns:
    """Return what is known so far; blocks.

    :raises RegistryUnavailableError: the registry does not answer.
    """
    return _read(context.registry.read_switch(_SWITCH))


def used(
    context: Context, session: Session, before_unix_s: float | None = None, *, disk_tokens: int
) -> None:
    """Count a session that was away and is used again, and what it has read; blocks.

    :param before_unix_s: when its turn ended: only what was away by then has come back with it
    """
    came_back(context, session, before_unix_s)
    if disk_tokens:
        was_read(context, session)


def came_back(context: Context, session: Session, before_unix_s: float | None = None) -> None:
    """Count a session that was away and is used again; blocks."""
    _ended(context, session, before_unix_s, came_back=True)


def went(context: Context, session: Session) -> None:
    """Count a session that was away and is deleted, or lost its snapshots unused; blocks."""
    _ended(context, session, None, came_back=False)


def give_up(context: Context) -> None:
    """Count the sessions that have been away for too long to be waited for; blocks.

    :raises RegistryUnavailableError: the registry does not answer.
    """
    before_unix_s = context.now() - context.limits.return_horizon_s
    while late := context.registry.give_up_away(before_unix_s):
        _count(context, late, came_back=False)


def _ended(
    context: Context, session: Session, before_unix_s: float | None, *, came_back: bool
) -> None:
    if session.away_unix_s is None:
        return
    key = session.tenant, session.session_id
    try:
        if context.registry.end_away(*key, before_unix_s):
            _count(context, [kind_of(session)], came_back=came_back)
    except RegistryUnavailableError as error:
        # What is learned is worth less than what it would be learned from.
        _log.warning("whether a session came back was not counted: %s", error.message)


def _count(context: Context, kinds: Iterable[Kind], *, came_back: bool) -> None:
    now = context.now()

    def counted(value: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
        def plus(known: Returns, kind: Kind) -> Returns:
            return known.with_outcome(kind, now, came_back=came_back)

        return reduce(plus, kinds, _read(value)).as_json()

    context.registry.revise_switch(_SWITCH, counted, now)


def _read(value: dict[str, JsonValue] | None) -> Returns:
    if value is None:
        return Returns()
    try:
        return read_returns(value)
    except InvalidInputError:
        _log.warning("what was learned of returns cannot be read, and is learned anew")
        return Returns()
