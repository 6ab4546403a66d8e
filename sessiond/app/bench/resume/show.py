"""How a report is shown on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show_resume(report: Mapping[str, Any], console: Console) -> None:
    """Print a report of ``sessiond bench resume``."""
    table = Table(title="milliseconds to the first token")
    for name in ("", "", "tokens", "samples", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    for row in report["distributions"]:
        times = (f"{row[name] * 1e3:.0f}" for name in ("p50_s", "p90_s", "p99_s"))
        table.add_row(
            row["series"], row["scenario"], f"{row['tokens']:,}", str(row["count"]), *times
        )
    console.print(table)
    console.print(_gates(report))
    for name, reason in report["not_measured"].items():
        console.print(f"{name}: {reason}")
    if report["effect_on_tokens"]:
        console.print(effect_in_words(report["kv_cache_dtype"], report["effect_on_tokens"]))
    how = "as a whole" if report["page_cache_dropped"] else "file by file"
    console.print(
        f"the page cache was dropped {how}; {report['tokens_checked']} first tokens checked"
    )
    console.print(f"all samples: {report['samples_file']}")


def effect_in_words(dtype: str, effect: Mapping[str, Any]) -> str:
    """Return what a report says of an FP8 KV cache's effect on tokens."""
    first = effect["first_divergence_median"]
    told = "none" if first is None else f"at token {first:g} in the median"
    return (
        f"--kv-cache-dtype {dtype}, to 16-bit KV: {effect['identical_share']:.1%} of "
        f"{effect['tokens_each']} greedy tokens of {effect['contexts']} contexts are identical; "
        f"{effect['diverged_contexts']} contexts diverge, {told}; log-probabilities differ by "
        f"{effect['logprob_difference_mean_nats']:.3f} nats in the mean, at most "
        f"{effect['logprob_difference_largest_nats']:.3f}. "
        f"{effect['resumed_contexts_identical']} resumed contexts went on exactly as from VRAM."
    )


def _gates(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"{report['ratios_of']}, {max(report['contexts']):,} tokens")
    for name in ("", "must", "measured", "met"):
        table.add_column(name, justify="right" if name else "left")
    words = {True: "yes", False: "no", None: "-"}
    for row in report["gates"]:
        shown = "-" if row["measured"] is None else f"{row['measured']:.3f}"
        table.add_row(row["what"], f"≤ {row['must']:.3f}", shown, words[row["met"]])
    return table
