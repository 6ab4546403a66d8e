"""``sessionctl pause`` and ``sessionctl unpause``."""

import time
from typing import Annotated, Any

import typer
from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output, text
from sessiond_cli.pauses import pause_words

_PATIENCE_S = 60.0


def pause(
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever asks.")
    ] = "",
    for_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            min=1,
            metavar="SECONDS",
            show_default=False,
            help="How long. Left out: until 'sessionctl unpause'.",
        ),
    ] = None,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Stop sessiond from suspending sessions by itself; as an operator.

    It holds for every daemon of the registry, and over restarts. Idle sweeps and sweep windows
    suspend nothing, and a window that comes meanwhile is left out; suspends that run go on, and
    'sessionctl suspend' works as ever. A second pause takes the place of the first. With --json:
    "by", "since_unix_s", "reason" and "until_unix_s", which is null without --for.
    """
    body: dict[str, Any] = {"reason": reason}
    if for_s is not None:
        body["until_unix_s"] = time.time() + for_s
    with Daemon(url, token) as daemon:
        done = daemon.post("/v1/admin/pause", body, timeout_s=_PATIENCE_S)
    Output(json).show(done, lambda screen: _print(screen, done))


def unpause(
    *,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Let sessiond suspend idle sessions by itself again; as an operator.

    With --json: "was_paused".
    """
    with Daemon(url, token) as daemon:
        done = daemon.post("/v1/admin/unpause", {}, timeout_s=_PATIENCE_S)
    words = "The sweeps run again." if done["was_paused"] else "The sweeps were not paused."
    Output(json).show(done, lambda screen: screen.print(words))


def _print(screen: Console, done: Answer) -> None:
    screen.print(text(f"The sweeps are {pause_words(done, time.time())}."))
