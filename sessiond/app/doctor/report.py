"""The doctor's findings as a table for people and as JSON for tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sessiond.app.doctor.judge import Finding, Level
from sessiond.app.doctor.measured import STAGE_WORDS, Facts, Rates, Stage, Way


@dataclass(frozen=True)
class Report:
    """All that one run has found."""

    facts: Facts
    rates: Rates
    ways: tuple[Way, ...]  #: the fastest first
    findings: tuple[Finding, ...]  #: problems first
    seconds: float

    @property
    def is_fine(self) -> bool:
        """Whether nothing has to be done."""
        return all(one.level is not Level.PROBLEM for one in self.findings)


def as_json(report: Report) -> dict[str, Any]:
    """Return the form that tools read."""
    best = report.ways[0]
    return {
        "fine": report.is_fine,
        "bottleneck": best.bottleneck.value,
        "best_codec": best.codec,
        "restore_bytes_s": best.bytes_s,
        "machine": report.facts.as_json(),
        "rates": asdict(report.rates),
        "restores": [
            {
                "codec": way.codec,
                "stored_share": way.stored_share,
                "bytes_s": way.bytes_s,
                "bottleneck": way.bottleneck.value,
                "stage_bytes_s": {stage.value: rate for stage, rate in way.stage_bytes_s.items()},
            }
            for way in report.ways
        ],
        "findings": [{**asdict(one), "level": one.level.value} for one in report.findings],
        "seconds": report.seconds,
    }


def as_text(report: Report) -> str:
    """Return the tables that people read."""
    facts, rates = report.facts, report.rates
    machine = [
        ("store root", facts.store_root),
        ("file system", f"{facts.file_system}, {'' if facts.direct_io else 'no '}direct I/O"),
        (
            "free",
            f"{facts.free_bytes / 1e9:.1f} GB, of which {facts.floor_bytes / 1e9:.1f} stay so",
        ),
        ("cores", f"{facts.usable_cores:g} of {facts.cores}, load {facts.load_average:.1f}"),
        ("huge pages", facts.huge_pages or "unknown"),
        (
            "write and sync",
            f"{_rate(rates.write_bytes_s)}; a small file {rates.sync_s * 1e3:.1f} ms",
        ),
        ("read", f"{_rate(rates.read_bytes_s)} as stored, {rates.size_bytes >> 20} MiB"),
        ("into scattered slots", f"{_rate(rates.scatter_bytes_s)}, {rates.threads} threads"),
        ("out of the slots", f"{_rate(rates.copy_bytes_s)} into RAM; a GPU's bus is not measured"),
    ]
    heads = ("codec", "stored", *(stage.value for stage in Stage), "restore", "limited by")
    lines = [
        *_table(machine),
        "",
        "Restores, in KV per second: each stage alone, and all of them overlapped.",
        *_table([heads, *map(_row, report.ways)]),
        "",
        _bottleneck(report.ways[0]),
        *(f"{one.level.value}: {one.sentence} {one.hint}" for one in report.findings),
        "Nothing is wrong." if report.is_fine else "There are problems.",
    ]
    return "".join(f"{line}\n" for line in lines)


def _bottleneck(best: Way) -> str:
    rate, limit = _rate(best.bytes_s), STAGE_WORDS[best.bottleneck]
    return f"The bottleneck is {limit}: with {best.codec}, restores reach {rate} of KV."


def _row(way: Way) -> tuple[str, ...]:
    each = (_rate(way.stage_bytes_s[stage]) for stage in Stage)
    limit = STAGE_WORDS[way.bottleneck]
    return (way.codec, f"{way.stored_share:.0%}", *each, _rate(way.bytes_s), limit)


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:.2f} GB/s"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
