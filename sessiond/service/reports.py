"""Reports and problems as JSON: one form for operations, events and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from textwrap import shorten
from typing import TYPE_CHECKING, Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessiond.domain.errors import SessiondError
    from sessiond.domain.outcomes import ResumeReport, SuspendReport
    from sessiond.domain.reasons import Cause
    from sessiond.domain.snapshot import SnapshotSummary
    from sessiond.store.store import DeleteReport

Json = dict[str, JsonValue]

#: Of a value, in a line of a log.
_LOGGED_CHARS: Final = 80


def problem_of(error: SessiondError) -> Json:
    """Return what a failed operation tells of its error."""
    return {
        "code": error.code,
        "reason": first_reason(error.causes),
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
    }


def summary_json(summary: SnapshotSummary) -> Json:
    """Return a snapshot's summary."""
    return asdict(summary)


def causes_json(causes: Iterable[Cause]) -> list[JsonValue]:
    """Return causes, each with its sentence and hint."""
    return [cause.as_json() for cause in causes]


def first_reason(causes: Iterable[Cause]) -> str:
    """Return the code of the first cause; empty without one."""
    return next((cause.reason.value for cause in causes), "")


def in_words(causes: Iterable[Cause]) -> str:
    """Return causes for one line of a log: of each its code, its sentence and both values."""
    return "; ".join(map(_worded, causes))


def _worded(cause: Cause) -> str:
    values = {"stored": cause.stored, "live": cause.live}
    shown = ", ".join(f"{name} {_shown(value)}" for name, value in values.items())
    ending = f" [{shown}]" if cause.stored is not None or cause.live is not None else ""
    return " ".join(f"{cause.reason.value}: {cause.in_words}{ending}".split())


def _shown(value: JsonValue) -> str:
    return shorten(json.dumps(value), _LOGGED_CHARS, placeholder="…")


def suspend_json(report: SuspendReport) -> Json:
    """Return the answer to a suspend."""
    return {
        "snapshot": summary_json(report.snapshot),
        "rounds": report.rounds,
        "missing_tokens": report.missing_tokens,
        "evicted_tokens": report.evicted_tokens,
        "recomputed_tokens": report.recomputed_tokens,
        "causes": causes_json(report.causes),
        "seconds": report.seconds,
    }


def new_bytes(result: Mapping[str, JsonValue]) -> int:
    """Return how many bytes were written, by the answer to a suspend."""
    snapshot = result.get("snapshot")
    written = snapshot.get("new_bytes") if isinstance(snapshot, Mapping) else None
    return written if isinstance(written, int) else 0


def lacks_only_gone(result: Mapping[str, JsonValue]) -> bool:
    """Whether no engine has what was left out any more, by the answer to a suspend."""
    causes = result.get("causes")
    reasons = (
        [one.get("reason") for one in causes if isinstance(one, Mapping)]
        if isinstance(causes, list)
        else []
    )
    return bool(reasons) and set(reasons) <= {Reason.KV_EVICTED, Reason.ENGINE_LOST_KV}


def resume_json(report: ResumeReport) -> Json:
    """Return the answer to a resume."""
    return {
        **_plain(report),
        "outcome": report.outcome.value,
        "reason": first_reason(report.causes),
        "causes": causes_json(report.causes),
        "noted": causes_json(report.noted),
        "plan": report.plan.as_json() if report.plan else None,
        "timing": report.timing.as_json() if report.timing else None,
        "lossy": asdict(report.lossy) if report.lossy else None,
    }


def _plain(report: ResumeReport) -> Json:
    """Return the fields that are no objects, which would be taken apart at length."""
    return {one.name: getattr(report, one.name) for one in fields(report)}


def delete_json(report: DeleteReport) -> Json:
    """Return the answer to a delete."""
    return asdict(report)
