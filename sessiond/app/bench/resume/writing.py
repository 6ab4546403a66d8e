"""Writes the page for people, and its plots beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sessiond.app.bench.resume import html
from sessiond.app.bench.resume.options import ResumeOptions
from sessiond.app.bench.resume.plots import plots
from sessiond.app.bench.resume.samples import Sample


def write(report: Mapping[str, Any], samples: Sequence[Sample], options: ResumeOptions) -> None:
    """Write what the options ask for."""
    if options.html is None:
        return
    drawn = plots(report, list(map(asdict, samples)))
    options.html.parent.mkdir(parents=True, exist_ok=True)
    options.html.write_text(html.page(report, drawn))
    for name, drawing in drawn.items():
        options.html.with_name(f"{options.html.stem}-{name}.svg").write_text(drawing)
