"""Delete: the registry hides the session, the tombstone keeps late commits out, its files go."""

from __future__ import annotations

import contextlib
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessiondError
from sessiond.domain.session import OperationKind
from sessiond.service import returns
from sessiond.service.ownership import Ownership
from sessiond.service.reports import delete_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessiond.domain.session import Session
    from sessiond.service.context import Context
    from sessiond.service.operations import Claim, Result


async def delete(
    context: Context, wanted: Claim, note_turn: Callable[[Session], Awaitable[None]]
) -> Result:
    """Do the work of a delete; in this order an interrupted one can be repeated.

    A daemon that froze in the middle finds its lease lost: then somebody else has ended the
    delete, and the id may be a new session's.

    :param note_turn: writes the session's newest turn down
    :raises OperationInProgressError: the operation's lease was lost.
    """
    started_s = monotonic()
    registry, (tenant, session_id) = context.registry, (wanted.tenant, wanted.session_id)
    fence = Ownership(context, tenant, wanted.operation_id)
    now = context.now()
    get = partial(registry.get_session, include_deleted=True)
    session = await context.blocking(get, tenant, session_id)
    await context.blocking(fence)  # so it is the session that was to be deleted
    if session.away_unix_s is not None and not session.deleted:
        with contextlib.suppress(SessiondError):
            await note_turn(session)  # it may have come back
    created_unix_s = session.created_unix_s
    lost_bytes = await context.blocking(
        registry.mark_deleted, tenant, session_id, now, created_unix_s
    )
    context.observer.settled(lost_bytes, read=False)
    await context.blocking(returns.went, context, session)
    remove = partial(context.store.delete_session, fence=fence)
    result = delete_json(await context.blocking(remove, tenant, session_id))
    context.observer.ended(OperationKind.DELETE, "complete", "", monotonic() - started_s)
    await context.blocking(registry.add_event, tenant, session_id, "deleted", now, result)
    return result
