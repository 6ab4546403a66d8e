"""``sessionctl engines list``."""

import time
from typing import Any, Final

from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import age
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output, table, text

_TITLES: Final = ("ENGINE", "MODEL", "VLLM", "STARTED", "KV", "TIER")


def list_engines(
    *, json: JsonFlag = False, url: UrlOption = DEFAULT_URL, token: TokenOption = ""
) -> None:
    """List the running engines, why the snapshot tier of one is off, and slow restores.

    With --json: "engines", "strangers" (configured servers without sessiond's connector) and
    "kv_support" (every kind of KV group and whether it is supported).
    """
    with Daemon(url, token) as daemon:
        found = daemon.get("/v1/engines")
    Output(json).show(found, lambda screen: _print(screen, found))


def _print(screen: Console, found: Answer) -> None:
    if found["engines"]:
        now_unix_s = time.time()
        rows = [_row(engine, now_unix_s) for engine in found["engines"]]
        screen.print(table(_TITLES, rows))
        for slow in (slow for engine in found["engines"] for slow in engine["slow_paths"]):
            screen.print(text(slow["sentence"], "yellow"))
            screen.print(text(f"  hint: {slow['hint']}"))
    else:
        screen.print("No engines.")
    for stranger in found["strangers"]:
        screen.print(text(f"{stranger['url']}: {stranger['detail']}", "yellow"))
        screen.print(text(f"  hint: {stranger['hint']}"))


def _row(engine: dict[str, Any], now_unix_s: float) -> list[str]:
    off = engine["tier_off"]
    word = " (attest)" if engine["attestable"] else ""
    return [
        engine["engine_id"],
        engine["model"],
        engine["vllm_version"],
        age(engine["started_unix_s"], now_unix_s),
        ", ".join(kind["kind"] for kind in engine["kv_kinds"])
        + ("" if engine["keeps_replies"] else " (prompts only)"),
        (f"off: {off}{word}" if off else "on") + (", draining" if engine["draining"] else ""),
    ]
