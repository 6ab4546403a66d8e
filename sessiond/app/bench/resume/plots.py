"""The plots of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessiond.app.bench.resume import svg
from sessiond.app.bench.resume.options import COLD, SCENARIOS

_TITLES = {
    "cold": "First token after the engine was killed",
    "pressure": "More sessions than memory holds: from when a turn was due",
    "competition": "The same, while the disk is read and written beside it",
}


def plots(report: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return SVG drawings by name.

    :param samples: rows of the samples' file
    """
    longest = max(report["contexts"])
    drawn = {
        scenario: svg.strip(
            f"{_TITLES[scenario]}, {longest:,} tokens", _seconds(samples, scenario, longest)
        )
        for scenario in SCENARIOS
    }
    medians: dict[str, dict[int, float]] = {}
    for row in report["distributions"]:
        if row["scenario"] == COLD:
            medians.setdefault(row["series"], {})[row["tokens"]] = row["p50_s"]
    drawn["contexts"] = svg.lines("Median time to the first token, by context", medians)
    return {name: drawing for name, drawing in drawn.items() if drawing}


def _seconds(
    samples: Sequence[Mapping[str, Any]], scenario: str, tokens: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for one in samples:
        if (one["scenario"], one["tokens"]) == (scenario, tokens):
            found.setdefault(one["series"], []).append(one["seconds"])
    return found
