from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sessiond.app.bench.resume.cost import Prices
from sessiond.app.bench.resume.gates import VS_LMCACHE, VS_RECOMPUTE
from sessiond.app.bench.resume.lmcache import NOT_INSTALLED
from sessiond.app.bench.resume.options import (
    COLD,
    CONTESTANTS,
    FS,
    LMCACHE,
    PLANAR,
    PRESSURE,
    RAM,
    RECOMPUTE,
    VRAM,
    ResumeOptions,
)
from sessiond.app.bench.resume.report import Run, make_report
from sessiond.app.bench.resume.samples import PREPARED, ColdStart, Found, Sample
from sessiond.app.bench.resume.sessions import orders
from sessiond.app.bench.resume.show import show_resume
from sessiond.app.bench.resume.site import Site
from sessiond.app.bench.resume.usage import Memory, Work
from sessiond.app.bench.resume.writing import write

SECONDS = {RECOMPUTE: 8.0, VRAM: 0.09, RAM: 0.11, PLANAR: 0.16, FS: 0.2, LMCACHE: 0.24}
TOKEN_BYTES = 23_040


def a_run(folder: Path, present: Mapping[str, str]) -> Run:
    """Return a run in which everybody took as long as SECONDS says for 7,936 tokens."""
    options = ResumeOptions(
        folder, folder, contexts=(2048, 7900), rounds=3, prices=Prices(gpu_hour=3.0)
    )
    who = [name for name in CONTESTANTS if name in SECONDS and (name != LMCACHE or present)]
    passes = orders(range(40_000), options, who)
    found = Found(tokens_checked=18)
    found.capacity = {"vram": 2, "ram": 2}
    for name in who:
        keeps = name != RECOMPUTE
        found.work[name] = {COLD: Work(1.0), **({PREPARED: Work(5.0, 0, 10)} if keeps else {})}
        found.memory[name] = Memory(3, 2, 1)
        found.cold_starts.append(ColdStart(name, 30.0, 0.5, 0.2))
        contexts = {one.name: one.whole_tokens for one in passes[0].arriving}
        found.device_bytes_s[name] = dict.fromkeys(contexts, 3.5e9)
        if keeps:
            share = 0.68 if name == PLANAR else 1.0
            found.stored_bytes[name] = {
                session: int(tokens * TOKEN_BYTES * share) for session, tokens in contexts.items()
            }
            found.store_s[name] = dict.fromkeys(contexts, 0.3)
    for series, seconds in SECONDS.items():
        if series != LMCACHE or present:
            for one in passes[0].arriving:
                each = seconds * one.whole_tokens / 7936
                sample = Sample(series, COLD, one.name, one.whole_tokens, each, 0)
                found.samples += [sample, replace(sample, scenario=PRESSURE, seconds=each * 2)]
    site = Site(folder, folder / "model", TOKEN_BYTES, 7936)
    return Run(options, site, passes, found, present, 100 << 30)


def test_a_report_has_every_ratio_at_the_longest_context(tmp_path: Path) -> None:
    report = make_report(a_run(tmp_path, {"lmcache": "0.5.6"}))
    assert report["ratios"] == {
        "resume_vs_recompute": pytest.approx(0.02),
        "resume_vs_vllm_fs": pytest.approx(0.8),
        "resume_vs_lmcache": pytest.approx(0.16 / 0.24),
        "resume_vs_floor": pytest.approx(0.16 / (0.09 + 0.68 * 7936 * TOKEN_BYTES / 3.5e9)),
    }
    assert report["ratios_of"] == PLANAR
    assert report["stored_vs_raw"] == pytest.approx(0.68)
    assert {row["name"]: row["met"] for row in report["gates"]}[VS_RECOMPUTE] is True
    assert report["versions"]["lmcache's lmcache"] == "0.5.6"
    assert report["capacity"]["vram"]["sessions"] == 2
    assert report["cost"]["by_series"][RECOMPUTE]["cost"] is None
    assert report["cost"]["by_series"][PLANAR]["cost"] == pytest.approx(0.16 / 3600 * 3)
    assert report["cost"]["by_series"][VRAM]["cost"] > 10


def test_what_was_not_measured_has_its_reason(tmp_path: Path) -> None:
    report = make_report(a_run(tmp_path, {}))
    assert report["ratios"]["resume_vs_lmcache"] is None
    assert report["not_measured"] == {VS_LMCACHE: NOT_INSTALLED}
    (row,) = (one for one in report["gates"] if one["name"] == VS_LMCACHE)
    assert (row["met"], row["reason"]) == (None, NOT_INSTALLED)


def test_the_files_of_a_report(tmp_path: Path) -> None:
    run = a_run(tmp_path, {})
    options = replace(run.options, html=tmp_path / "out" / "page.html")
    report = make_report(run)
    write(report, run.found.samples, options)
    assert json.loads(json.dumps(report))["kind"] == "resume"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"page.html", "page-cold.svg", "page-pressure.svg", "page-contexts.svg"}
    assert PLANAR in (tmp_path / "out" / "page.html").read_text()


def test_a_report_is_shown(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    show_resume(make_report(a_run(tmp_path, {})), console)
    shown = console.export_text()
    assert NOT_INSTALLED in shown.replace("\n", " ")
    assert "0.020" in shown
