"""One page that holds everything: no script, no picture and no style from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from sessiond.app.bench.resume.show import effect_in_words

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left }
th { background: #f3f3f3 }
.met { color: #1d7a3a } .unmet { color: #b3261e } .open { color: #777 }
pre { background: #f6f6f6; padding: 1rem; overflow: auto }
"""


def page(report: Mapping[str, Any], plots: Mapping[str, str]) -> str:
    """Return the page. All text of the report is escaped; *plots* are drawings of our own."""
    body = [
        "<h1>What it takes to come back</h1>",
        f"<p>{escape(_summary(report))}</p>",
        _section("What must be reached", _gates(report["gates"])),
        *_effect(report),
        _section("Plots", "\n".join(plots.values())),
        _section("Time to the first token", _distributions(report["distributions"])),
        _section("A turn with offload on, to one without", _overheads(report)),
        _section("Cold starts", _table(report["cold_starts"])),
        _section("Work and memory", _table(report["usage"])),
        _section("Sessions held", _pre(report["capacity"])),
        _section("Cost per request served in time", _costs(report)),
    ]
    if report["not_measured"]:
        body.append(_section("Not measured", _pre(report["not_measured"])))
    shown = {name: report[name] for name in ("configuration", "machine", "versions")}
    body.append(_section("Configuration, machine and versions", _pre(shown)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>sessiond bench resume</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _summary(report: Mapping[str, Any]) -> str:
    how = "was dropped as a whole" if report["page_cache_dropped"] else "was dropped file by file"
    return (
        f"{report['model']}, contexts of {', '.join(f'{each:,}' for each in report['contexts'])} "
        f"tokens, {report['rounds']} sessions of each, seed {report['configuration']['seed']}. "
        f"The engine was killed before sessions came back, and the page cache {how} before each. "
        f"{report['tokens_checked']} restored first tokens were the same as from VRAM."
    )


def _section(title: str, inside: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{inside}"


def _effect(report: Mapping[str, Any]) -> list[str]:
    effect = report["effect_on_tokens"]
    if not effect:
        return []
    told = escape(effect_in_words(report["kv_cache_dtype"], effect))
    inside = f"<p>{told}</p>" + _table(effect["by_context"])
    return [_section("What an FP8 KV cache does to tokens", inside)]


def _gates(rows: Iterable[Mapping[str, Any]]) -> str:
    words = {True: ("met", "met"), False: ("unmet", "not met"), None: ("open", "not measured")}
    lines = []
    for row in rows:
        style, word = words[row["met"]]
        told = f"{word}: {row['reason']}" if row["reason"] else word
        cells = (row["what"], f"≤ {row['must']:.3f}", _shown(row["measured"]))
        inside = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr>{inside}<td class="{style}">{escape(told)}</td></tr>')
    return _rows(("", "must", "measured", ""), lines)


def _distributions(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table([{name: row[name] for name in row if name != "mean_s"} for row in rows])


def _costs(report: Mapping[str, Any]) -> str:
    rows = [
        {
            "": name,
            "served within the bound": one["served_within_bound"],
            "cost": one["cost"],
            "note": one.get("reason", ""),
        }
        for name, one in report["cost"]["by_series"].items()
    ]
    bound = f"<p>Within {report['cost']['latency_bound_s']:g} s, at the prices given:</p>"
    return bound + _table(rows) + _pre(report["cost"]["prices"])


def _overheads(report: Mapping[str, Any]) -> str:
    return _table([{"": name, **one} for name, one in report["offload_on_vs_off"].items()])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    lines = []
    for row in rows:
        inside = "".join(f"<td>{escape(_shown(value))}</td>" for value in row.values())
        lines.append(f"<tr>{inside}</tr>")
    return _rows(tuple(rows[0]), lines)


def _rows(heads: Sequence[str], lines: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(_words(name))}</th>" for name in heads)
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _words(name: str) -> str:
    return name.replace("_s", " (s)") if name.endswith("_s") else name.replace("_", " ")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _pre(value: object) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
