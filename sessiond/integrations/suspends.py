"""What the modules of all frameworks have in common: how they suspend beside their agents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sessiond.client import ApiError, Operation, SuspendReport

_log = logging.getLogger(__name__)

#: How long an agent's run is held up for a suspend, by default; most take less.
SUSPEND_WAIT_S: Final = 2.0
#: The report of a suspend, or the operation of one that goes on: it was not waited for any longer.
SuspendOutcome = SuspendReport | Operation
#: Is told a session's id, and what became of its suspend.
OnSuspend = Callable[[str, SuspendOutcome], object]


def tell(on_suspend: OnSuspend | None, session_id: str, outcome: SuspendOutcome | None) -> None:
    """Tell what became of a suspend; ``None``: there was nothing to suspend."""
    if isinstance(outcome, Operation):
        _log.info("session %s: its suspend %s goes on", session_id, outcome.operation_id)
    if outcome is not None and on_suspend is not None:
        on_suspend(session_id, outcome)


def tell_unsuspended(session_id: str, error: ApiError) -> None:
    """Log why a session was not suspended."""
    _log.warning("session %s was not suspended: %s", session_id, error)


def tell_unresumed(session_id: str, error: ApiError) -> None:
    """Log why a session was not resumed, unless it is not even away yet."""
    if error.code != "operation_in_progress":
        _log.warning("session %s was not resumed ahead: %s", session_id, error)
