"""What the demo measured, what it promised, and how both are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

#: Below this the demo fails; README tells what an idle two-core machine reaches.
MIN_SPEEDUP = 4.0
MIN_CONTEXT_TOKENS = 6000


@dataclass(frozen=True)
class SnapshotFigures:
    """The suspend's answer."""

    tokens: int
    chunks: int
    raw_bytes: int
    stored_bytes: int
    seconds: float


@dataclass(frozen=True)
class IncompatibleFigures:
    """The resume on other weights."""

    outcome: str
    reason: str
    output_matches_fresh_engine: bool


@dataclass(frozen=True)
class CorruptFigures:
    """The resume of a damaged snapshot."""

    outcome: str
    reason: str
    output_identical: bool


@dataclass(frozen=True)
class Report:
    """Everything that ``report.json`` holds."""

    model: str
    vllm_version: str
    context_tokens: int
    cold_ttft_s: float
    warm_ttft_s: float
    resume_call_s: float
    resume_ttft_s: float
    recompute_ttft_s: float
    speedup: float
    resume_outcome: str
    restorable_tokens: int
    cached_tokens: int
    output_identical: bool
    page_cache_dropped: bool
    snapshot: SnapshotFigures
    incompatible: IncompatibleFigures
    corrupt: CorruptFigures


def broken_promises(report: Report) -> list[str]:
    """Return what does not hold, as sentences; empty when all is well."""
    promises = [
        (
            report.context_tokens >= MIN_CONTEXT_TOKENS,
            f"the context has {report.context_tokens} tokens, fewer than {MIN_CONTEXT_TOKENS}",
        ),
        (report.resume_outcome == "restored", f"the resume ended as {report.resume_outcome}"),
        (report.output_identical, "the resumed turn's tokens differ from the reference"),
        (
            report.cached_tokens == report.restorable_tokens,
            f"vLLM reused {report.cached_tokens} tokens, not {report.restorable_tokens}",
        ),
        (report.speedup >= MIN_SPEEDUP, f"the speedup is {report.speedup:.1f}"),
        (
            (report.incompatible.outcome, report.incompatible.reason)
            == ("recomputed", "weights_mismatch"),
            f"other weights were answered with {report.incompatible}",
        ),
        (
            report.incompatible.output_matches_fresh_engine,
            "the turn on other weights differs from a fresh engine's",
        ),
        (
            report.corrupt.reason == "snapshot_corrupt"
            and report.corrupt.outcome in ("recomputed", "partial"),
            f"the flipped byte was answered with {report.corrupt}",
        ),
        (report.corrupt.output_identical, "the turn after the flipped byte differs"),
    ]
    return [sentence for holds, sentence in promises if not holds]


def show(report: Report, broken: Sequence[str], console: Console) -> None:
    """Print the report as a table."""
    table = Table(title=f"{report.model}, vLLM {report.vllm_version}", show_header=False)
    for name, value in _rows(report):
        table.add_row(name, value)
    console.print(table)
    for sentence in broken:
        console.print(f"[red]broken promise:[/red] {sentence}")


def _rows(report: Report) -> list[tuple[str, Any]]:
    snapshot, incompatible, corrupt = report.snapshot, report.incompatible, report.corrupt
    yes_no = {True: "[green]yes[/green]", False: "[red]no[/red]"}
    return [
        ("context", f"{report.context_tokens:,} tokens"),
        ("time to first token, cold", f"{report.cold_ttft_s:.3f} s"),
        ("  still in VRAM", f"{report.warm_ttft_s:.3f} s"),
        (
            "  [bold]engine killed, resumed by sessiond[/bold]",
            f"[bold]{report.resume_ttft_s:.3f} s[/bold], {report.resume_call_s:.3f} s in the call",
        ),
        ("  recomputed", f"{report.recompute_ttft_s:.3f} s"),
        ("[bold]speedup over recomputing[/bold]", f"[bold]{report.speedup:.1f} x[/bold]"),
        (
            "tokens reused (vLLM's own count)",
            f"{report.cached_tokens:,} of {report.restorable_tokens:,} restorable",
        ),
        ("same 64 tokens as without interruption", yes_no[report.output_identical]),
        (
            "snapshot",
            _snapshot_row(snapshot),
        ),
        ("page cache dropped before the resume", yes_no[report.page_cache_dropped]),
        ("resume on other weights", f"{incompatible.outcome}: {incompatible.reason}"),
        (
            "  same tokens as an engine without snapshots",
            yes_no[incompatible.output_matches_fresh_engine],
        ),
        ("resume after one flipped byte", f"{corrupt.outcome}: {corrupt.reason}"),
        ("  same tokens as a recompute", yes_no[corrupt.output_identical]),
    ]


def _snapshot_row(snapshot: SnapshotFigures) -> str:
    stored_mb, raw_mb = snapshot.stored_bytes / 1e6, snapshot.raw_bytes / 1e6
    ratio = snapshot.raw_bytes / snapshot.stored_bytes
    return (
        f"{snapshot.tokens:,} tokens, {snapshot.chunks} chunks, "
        f"{stored_mb:.1f} MB of {raw_mb:.1f} MB ({ratio:.2f} x), {snapshot.seconds:.2f} s"
    )
