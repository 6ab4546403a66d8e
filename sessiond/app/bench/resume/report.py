"""Puts the report together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.bench.resume import summary
from sessiond.app.bench.resume.capacity import Budgets, capacity
from sessiond.app.bench.resume.cost import Held, cost_per_served
from sessiond.app.bench.resume.gates import STORED, VS_LMCACHE, gates
from sessiond.app.bench.resume.lmcache import NOT_INSTALLED
from sessiond.app.bench.resume.options import (
    AUTO,
    COLD,
    FS,
    LMCACHE,
    OURS,
    RAM,
    VRAM,
    ResumeOptions,
)
from sessiond.app.bench.resume.samples import PREPARED, Found
from sessiond.app.bench.resume.sessions import PassOrder
from sessiond.app.bench.resume.site import ENV, Site
from sessiond.app.bench.resume.usage import Work
from sessiond.testing.model import MODEL_NAME


@dataclass(frozen=True)
class Run:
    """Everything that a report follows from."""

    options: ResumeOptions
    site: Site
    passes: Sequence[PassOrder]
    found: Found
    lmcache: Mapping[str, str]  #: versions in its environment; empty: it took no part
    disk_bytes: int  #: the budget for sessions on disk


def make_report(run: Run) -> dict[str, Any]:
    """Return the report."""
    found, options, longest = run.found, run.options, run.site.longest_tokens
    main = summary.main_series(found)
    ratios = summary.ratios(found, main, longest)
    stored = summary.stored_vs_raw(found, main, run.site.token_bytes)
    reasons = _reasons(run)
    rates = [rate for each in found.device_bytes_s.values() for rate in each.values()]
    return {
        "kind": "resume",
        "ratios": ratios,
        "ratios_of": main,
        "ratios_by_context": _by_context(run),
        "stored_vs_raw": stored,
        "offload_on_vs_off": summary.offload_on_vs_off(found, longest),
        "gates": _gates(run, {**ratios, STORED: stored}, reasons),
        "not_measured": reasons,
        "model": MODEL_NAME,
        "contexts": list(options.whole_tokens),
        "rounds": options.rounds,
        "kv_cache_dtype": options.kv_cache_dtype,
        "effect_on_tokens": found.effect,
        "tokens_checked": found.tokens_checked,
        "page_cache_dropped": found.page_cache_dropped,
        "device_read_bytes_s_median": statistics.median(rates),
        "distributions": summary.distributions(found),
        "cold_starts": [asdict(one) for one in found.cold_starts],
        "usage": [_usage(run, name) for name in found.memory],
        "capacity": _capacity(run),
        "cost": _cost(run),
        "samples_file": str(options.samples_file),
        "configuration": _configuration(run),
        "machine": describe_machine(options.folder.absolute()),
        "versions": {
            **versions(),
            **{f"lmcache's {name}": one for name, one in run.lmcache.items()},
        },
    }


def _gates(
    run: Run, measured: Mapping[str, float | None], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
    if run.options.kv_cache_dtype != AUTO:
        reasons = {**reasons, STORED: "this bound is for 16-bit KV"}
        measured = {**measured, STORED: None}
    return [asdict(one) for one in gates(measured, reasons)]


def _by_context(run: Run) -> dict[str, Any]:
    return {
        name: {
            tokens: summary.ratios(run.found, name, tokens) for tokens in run.options.whole_tokens
        }
        for name in OURS
        if name in run.found.stored_bytes
    }


def _reasons(run: Run) -> dict[str, str]:
    """Return why something is not in the report, by the name that it would have."""
    reasons = dict(run.found.skipped)
    for ratio, name in ((VS_LMCACHE, LMCACHE), ("resume_vs_vllm_fs", FS)):
        if name not in run.options.contestants:
            reasons[ratio] = "not measured: not among --contestants"
        elif name == LMCACHE and not run.lmcache:
            reasons[ratio] = NOT_INSTALLED
        elif name in reasons:
            reasons[ratio] = reasons[name]
    return reasons


def _usage(run: Run, name: str) -> dict[str, Any]:
    found, longest = run.found, run.site.longest_tokens
    returns = found.select(name, COLD, longest)
    prepared = found.work[name].get(PREPARED, Work())
    stored = found.stored_bytes.get(name, {})
    memory = found.memory[name]
    return {
        "contestant": name,
        "cpu_s_per_return": statistics.fmean(one.cpu_s for one in returns),
        "read_bytes_per_return": int(statistics.fmean(one.read_bytes for one in returns)),
        "stored_bytes_per_session": _mean_stored(run, name),
        "store_s_median": statistics.median(found.store_s[name].values()) if stored else None,
        "prepare_cpu_s": prepared.cpu_s,
        "prepare_written_bytes": prepared.written_bytes,
        "rss_bytes": memory.rss_bytes,
        "pss_bytes": memory.pss_bytes,
        "shm_bytes": memory.shm_bytes,
    }


def _mean_stored(run: Run, name: str) -> int:
    """Return what a session of the longest context has on disk."""
    stored = run.found.stored_bytes.get(name, {})
    returns = run.found.select(name, COLD, run.site.longest_tokens)
    each = [stored[one.session] for one in returns if one.session in stored]
    return int(statistics.fmean(each)) if each else 0


def _capacity(run: Run) -> dict[str, Any]:
    return capacity(
        Budgets(run.site.kv_bytes, run.site.ram_bytes, run.disk_bytes),
        run.site.longest_tokens * run.site.token_bytes,
        {name: _mean_stored(run, name) for name in run.found.stored_bytes},
        run.found.capacity,
    )


def _cost(run: Run) -> dict[str, Any]:
    """Return what a return of the longest context costs, each way."""
    options, site = run.options, run.site
    kv_bytes = site.longest_tokens * site.token_bytes
    by_series = {}
    for series, scenario, tokens in run.found.rows():
        if (scenario, tokens) != (COLD, site.longest_tokens):
            continue
        stored = _mean_stored(run, series)
        held = Held(disk_bytes=stored, written_bytes=stored)
        if series == VRAM:
            held = Held(vram_share=kv_bytes / site.kv_bytes)
        if series == RAM:
            held = Held(ram_bytes=kv_bytes)
        seconds = run.found.seconds(series, scenario, tokens)
        by_series[series] = cost_per_served(options.prices, seconds, options.latency_bound_s, held)
    return {
        "latency_bound_s": options.latency_bound_s,
        "prices": asdict(options.prices),
        "by_series": by_series,
    }


def _configuration(run: Run) -> dict[str, Any]:
    options, site = run.options, run.site
    return {
        "seed": options.seed,
        "passes": [list(one.contestants) for one in run.passes],
        "scenarios": list(options.scenarios),
        "interval_s": options.interval_s,
        "kv_bytes": site.kv_bytes,
        "ram_bytes": site.ram_bytes,
        "kv_token_bytes": site.token_bytes,
        "engine_options": list(site.options),
        "engine_environment": dict(ENV),
        "competition_bytes": {
            name: {"read": one.read_bytes, "written": one.written_bytes}
            for name, one in run.found.competition_bytes.items()
        },
    }
