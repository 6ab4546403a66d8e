"""What a soak tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.bench.soak import comparison, servers
from sessiond.app.bench.soak.model import SHORT_NAME

if TYPE_CHECKING:
    from sessiond.app.bench.soak.comparison import Difference, Verdict
    from sessiond.app.bench.soak.options import SoakOptions
    from sessiond.app.bench.soak.run import Soak

#: What must be zero.
MUST_BE_ZERO: Final = ("wrong_tokens", "wrong_logprobs", "lost_sessions", "leaks")
_SHOWN: Final = 20


def report_of(soak: Soak, verdict: Verdict, options: SoakOptions) -> dict[str, Any]:
    """Return the report."""
    counts, events = soak.ledger.counts, soak.events
    suspends, asked = events["suspended"], counts["suspends_asked"]
    return {
        "kind": "soak",
        "turns": counts["turns"],
        "suspends": suspends,
        "suspends_by_sweep": max(0, suspends - asked),
        "resumes": counts["resumes"],
        "forks": counts["forks"],
        "deletes": counts["deletes"],
        "sessions": counts["sessions"],
        "idles": counts["idles"],
        "hang_ups": counts["hang_ups"],
        "engine_kills": soak.kills["engine"],
        "daemon_kills": soak.kills["daemon"],
        "compared_tokens": verdict.tokens,
        "near_ties": verdict.near_ties,
        "wrong_tokens": len(verdict.wrong),
        "wrong_logprobs": len(verdict.drifted),
        "lost_sessions": len(soak.lost),
        "leaks": len(soak.leaked),
        "compared": _compared(verdict),
        "wrong": _shown(verdict.wrong),
        "drifted": _shown(verdict.drifted),
        "lost": soak.lost,
        "leaked": soak.leaked,
        "outcomes": dict(soak.ledger.outcomes),
        "resume_outcomes": dict(soak.ledger.resumed),
        "refused": dict(sorted(soak.ledger.refused.items())),
        "events": dict(sorted(events.items())),
        "leak_limits": asdict(soak.limits),
        "minutes": options.minutes,
        "agents": options.agents,
        "seed": options.seed,
        "model": f"{SHORT_NAME} in float32",
        "vram_chunks": servers.VRAM_CHUNKS,
        "ram_tier_chunks": servers.RAM_CHUNKS,
        "machine": describe_machine(Path.cwd()),
        "versions": versions(),
    }


def passed(report: Mapping[str, Any]) -> bool:
    """Whether nothing was wrong, lost or left."""
    return not any(report[name] for name in MUST_BE_ZERO)


def show_soak(report: Mapping[str, Any], console: Console) -> None:
    """Print a report for a person."""
    table = Table(
        title=f"{report['minutes']:g} minutes, {report['agents']} agents", show_header=False
    )
    for name, value in report.items():
        if isinstance(value, int):
            bad = name in MUST_BE_ZERO and value
            table.add_row(name.replace("_", " "), f"[red]{value}[/red]" if bad else str(value))
    for name in ("outcomes", "resume_outcomes", "refused"):
        told = ", ".join(f"{count} {what}" for what, count in report[name].items())
        table.add_row(name.replace("_", " "), told)
    console.print(table)
    for name in ("wrong", "drifted", "lost", "leaked"):
        for one in report[name]:
            console.print(f"{name}: {one}", markup=False)


def _compared(verdict: Verdict) -> dict[str, Any]:
    return {
        "answers": verdict.answers,
        "largest_drift": verdict.largest_drift,
        "near_tie_nats": comparison.NEAR_TIE,
        "drift_nats": comparison.DRIFT,
    }


def _shown(found: list[Difference]) -> list[dict[str, Any]]:
    return [asdict(one) for one in found[:_SHOWN]]
