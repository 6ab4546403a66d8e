"""``sessionctl drain`` and ``sessionctl undrain``."""

from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import count, duration
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output, facts, print_causes, table

#: The daemon answers within the deadline; this is for the way.
_PATIENCE_S = 30.0

EngineArgument = Annotated[str, typer.Argument(metavar="ENGINE", help="The engine's id.")]


def drain(
    *,
    engine: EngineArgument,
    deadline: Annotated[
        float,
        typer.Option("--deadline", min=0, max=3600, metavar="SECONDS", help="How long to try."),
    ] = 30.0,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Suspend all sessions of an engine before it is stopped, and say what could not be stored.

    The most valuable ones go first; turns in flight are waited for. Until 'undrain', or its end,
    the engine gets new turns only if no other one can serve them. The exit status is 0 also if
    something was not stored. With --json: "complete", "saved" and "unsaved" (with "code").
    """
    path = f"/v1/engines/{quote(engine, safe='')}/drain"
    output = Output(json)
    with Daemon(url, token) as daemon, output.working(f"Draining {engine} …"):
        done = daemon.post(path, {"deadline_s": deadline}, timeout_s=deadline + _PATIENCE_S)
    output.show(done, lambda screen: _print(screen, done))


def undrain(
    *,
    engine: EngineArgument,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Let a drained engine serve again as any other.

    With --json: "engine_id" and "was_draining".
    """
    with Daemon(url, token) as daemon:
        path = f"/v1/engines/{quote(engine, safe='')}/undrain"
        done = daemon.post(path, {}, timeout_s=_PATIENCE_S)
    Output(json).show(done, lambda screen: _print_undrained(screen, done))


def _print(screen: Console, done: Answer) -> None:
    rows = [
        ("engine", done["engine_id"]),
        ("stored", f"{len(done['saved'])} sessions"),
        ("not stored", f"{len(done['unsaved'])} sessions"),
        ("complete", "yes" if done["complete"] else "no"),
        ("took", duration(done["seconds"])),
    ]
    screen.print(facts(rows))
    print_causes(screen, done["causes"])
    if done["unsaved"]:
        lost = [
            [one["tenant"], one["session_id"], count(one["tokens"]), one["code"]]
            for one in done["unsaved"]
        ]
        screen.print(table(("TENANT", "SESSION", "TOKENS", "WHY NOT"), lost))


def _print_undrained(screen: Console, done: Answer) -> None:
    was = "yes" if done["was_draining"] else "no"
    screen.print(facts([("engine", done["engine_id"]), ("was draining", was)]))
