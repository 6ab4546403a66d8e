"""How the figures of a benchmark are shown to a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show_store(report: Mapping[str, Any], console: Console) -> None:
    """Print a report of ``sessiond bench store``."""
    data = report["data"]
    title = f"{data['raw_bytes'] / 1e9:.2f} GB, {report['rounds']} rounds"
    table = Table(title=title)
    for name in ("", "median GB/s", "least", "most"):
        table.add_column(name, justify="right" if name else "left")
    for name, rate in sorted(report["bytes_s"].items()):
        values = (rate["median_bytes_s"], rate["least_bytes_s"], rate["most_bytes_s"])
        table.add_row(name, *(f"{value / 1e9:.2f}" for value in values))
    console.print(table)
    show_ratios(report, console)
    for line in _store_notes(report):
        console.print(line)


def show_interference(report: Mapping[str, Any], console: Console) -> None:
    """Print a report of ``sessiond bench interference``."""
    table = Table(title="time between tokens of other requests")
    for name in ("", "tokens", "median ms", "p99 ms", "longest ms"):
        table.add_column(name, justify="right" if name else "left")
    for name, gaps in report["gaps"].items():
        values = (gaps["median_s"], gaps["p99_s"], gaps["longest_s"])
        table.add_row(name, str(gaps["count"]), *(f"{value * 1e3:.1f}" for value in values))
    console.print(table)
    show_ratios(report, console)


def show_gateway(report: Mapping[str, Any], console: Console) -> None:
    """Print a report of ``sessiond bench gateway``."""
    table = Table(title=f"milliseconds that {report['turns']} turns took longer")
    for name in ("", "directly", "median more", "half of them", "p90", "of it the engine's"):
        table.add_column(name, justify="right" if name else "left")
    for kind, one in report["added_ms"].items():
        table.add_row(
            kind.replace("_", " "),
            f"{report['took_ms_median'][kind]['direct']:.1f}",
            f"{one['median_ms']:.2f}",
            f"{one['low_ms']:.2f} to {one['high_ms']:.2f}",
            f"{one['p90_ms']:.2f}",
            f"{report['added_ms_by_engine'][kind]['median_ms']:.2f}",
        )
    console.print(table)
    least, most = report["throughput_ratio_least"], report["throughput_ratio_most"]
    console.print(
        f"{report['streams']} streams at once: {report['throughput_ratio']:.3f} of the tokens per "
        f"second of direct calls ({least:.3f} to {most:.3f})"
    )


def show_ratios(report: Mapping[str, Any], console: Console) -> None:
    """Print the ratios of a report."""
    table = Table(show_header=False)
    for name, value in (*report["ratios"].items(), *report.get("further_ratios", {}).items()):
        table.add_row(name, f"{value:.3f}")
    console.print(table)


def _store_notes(report: Mapping[str, Any]) -> Iterator[str]:
    data = report["data"]
    yield f"bytes: {data['description']}"
    if data["chunks"] > data["distinct_chunks"]:
        yield f"  {data['distinct_chunks']} distinct chunks, repeated to {data['chunks']}"
    yield f"sessions of {data['session_chunks']} chunks of {data['chunk_bytes']:,} bytes"
    memory = max(report["mover_private_bytes"].values()) / 2**20
    yield f"the mover's own memory: at most {memory:.0f} MiB"
    if not report["page_cache_dropped"]:
        yield "the page cache could not be dropped: safetensors may have read from memory"
    if not report["vllm_fs_is_direct"]:
        yield "vLLM's fs tier could not pass the page cache by"
