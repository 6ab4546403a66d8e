"""``sessionctl engines attest``."""

from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import duration
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output, facts

#: Longer than the daemon's deadline for all of it.
PATIENCE_S = 120.0


def attest(
    *,
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's id.")],
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Say that an engine's weights are those of its files; its snapshot tier goes on again.

    After a reset of its caches, which sleep and pause bring, an engine keeps and restores
    nothing, because its weights may have changed. Attest it only if they did not, or were loaded
    from the same files again. Its caches are reset once more, and requests that run begin anew.
    With --json: "engine_id", "was_off" (why the tier was off) and "seconds".
    """
    with Daemon(url, token) as daemon:
        path = f"/v1/engines/{quote(engine, safe='')}/attest"
        done = daemon.post(path, {}, timeout_s=PATIENCE_S)
    Output(json).show(done, lambda screen: _print(screen, done))


def _print(screen: Console, done: Answer) -> None:
    rows = [
        ("engine", done["engine_id"]),
        ("tier", "on"),
        ("was off", done["was_off"] or "no"),
        ("took", duration(done["seconds"])),
    ]
    screen.print(facts(rows))
