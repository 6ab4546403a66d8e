"""How suspends and resumes end, for metrics and logs: the same reasons as in their answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sessiond.domain.outcomes import ResumeReport, SuspendReport
from sessiond.service.reports import first_reason, in_words

if TYPE_CHECKING:
    from sessiond.domain.errors import SessiondError
    from sessiond.domain.session import OperationKind, Session
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)


def tell_end(
    context: Context,
    session: Session,
    kind: OperationKind,
    outcome: str,
    report: SuspendReport | ResumeReport,
) -> None:
    """Take note of one that has done what could be done."""
    noted = report.noted if isinstance(report, ResumeReport) else ()
    causes = (*report.causes, *noted)
    context.observer.ended(kind, outcome, first_reason(report.causes), report.seconds)
    context.observer.explained(kind, causes)
    ending = f"{outcome} in {report.seconds:.3f} s"
    _log.info("%s: %s%s", _name(session, kind), ending, _because(in_words(causes)))


def tell_failure(
    context: Context, session: Session, kind: OperationKind, ending: str, error: SessiondError
) -> None:
    """Take note of one that has failed, or that chose to do nothing."""
    context.observer.ended(kind, ending, error.code, 0.0)
    context.observer.explained(kind, error.causes)
    why = in_words(error.causes) or error.message
    _log.warning("%s: %s, %s%s", _name(session, kind), ending, error.code, _because(why))


def _name(session: Session, kind: OperationKind) -> str:
    return f"{kind.value} of session {session.session_id} of tenant {session.tenant}"


def _because(words: str) -> str:
    return f"; {words}" if words else ""
