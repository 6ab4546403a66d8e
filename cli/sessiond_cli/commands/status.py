"""``sessionctl status``."""

import time
from typing import Any, Final

from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.failures import CommandError
from sessiond_cli.formats import duration
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output, facts, table
from sessiond_cli.pauses import pause_words

_FORBIDDEN: Final = "forbidden"
_TITLES: Final = ("WINDOW", "CRON", "TIME ZONE", "IDLE FOR")


def status(
    *,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Show whether the daemon is ready, and what it suspends by itself.

    With --json: "version", "status", "live_engines", "sweeps_paused" and, for operators, "sweeps"
    with "paused", "idle_timeout_s" and "windows"; for others that is null.
    """
    with Daemon(url, token) as daemon:
        found = {
            "version": daemon.get("/healthz")["version"],
            **daemon.get("/readyz"),
            "sweeps": _sweeps(daemon),
        }
    Output(json).show(found, lambda screen: _print(screen, found))


def _sweeps(daemon: Daemon) -> Answer | None:
    try:
        return daemon.get("/v1/admin/sweep")
    except CommandError as error:
        if error.failure.code == _FORBIDDEN:
            return None
        raise


def _print(screen: Console, found: Answer) -> None:
    sweeps = found["sweeps"]
    rows = [
        ("daemon", f"{found['status']}, version {found['version']}"),
        ("engines", str(found["live_engines"])),
        ("sweeps", _state(found, sweeps)),
    ]
    if sweeps is not None:
        rows.append(("idle timeout", duration(sweeps["idle_timeout_s"])))
    screen.print(facts(rows))
    if sweeps is not None and sweeps["windows"]:
        screen.print(table(_TITLES, [_row(window) for window in sweeps["windows"]]))


def _state(found: Answer, sweeps: Answer | None) -> str:
    if sweeps is not None and sweeps["paused"]:
        return pause_words(sweeps["paused"], time.time())
    return "paused" if found["sweeps_paused"] else "on"


def _row(window: dict[str, Any]) -> list[str]:
    return [window["name"], window["cron"], window["timezone"], duration(window["idle_s"])]
