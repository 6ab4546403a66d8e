"""``sessionctl fork``."""

from typing import Annotated

import typer
from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import count, size
from sessiond_cli.options import DEFAULT_URL, JsonFlag, SessionArgument, TokenOption, UrlOption
from sessiond_cli.output import Output, facts, print_running

#: A fork moves no KV; what it waits for is the disk and the database.
_PATIENCE_S = 60.0


def fork(  # noqa: PLR0913 - one parameter for each argument and option
    *,
    session: SessionArgument,
    new_session: Annotated[
        str | None,
        typer.Argument(
            metavar="[NEW_ID]", show_default=False, help="The fork's id; made if left out."
        ),
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            "--generation",
            min=1,
            metavar="N",
            show_default=False,
            help="Which snapshot. Left out: the newest one.",
        ),
    ] = None,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Begin a new session with a snapshot of another one; no KV is written.

    Both have the same chunks and live on by themselves: deleting one leaves the other whole.
    With --json: the new session's object.
    """
    body: Answer = {}
    if new_session is not None:
        body["session_id"] = parse_session_id(new_session)
    if generation is not None:
        body["generation"] = generation
    path = f"/v1/sessions/{parse_session_id(session)}/fork?wait={_PATIENCE_S:.0f}"
    with Daemon(url, token) as daemon:
        done = daemon.post(path, body, timeout_s=2 * _PATIENCE_S)
    ended = "forked_from" in done  # else it is an operation that goes on
    Output(json).show(done, lambda screen: (_print if ended else print_running)(screen, done))


def _print(screen: Console, fork: Answer) -> None:
    origin, snapshot = fork["forked_from"], fork["snapshot"]
    rows = [
        ("session", fork["session_id"]),
        ("forked from", f"{origin['session_id']}, generation {origin['generation']}"),
        ("tokens", f"{count(snapshot['tokens_restorable'])} of {count(snapshot['tokens_total'])}"),
        ("shared", size(snapshot["shared_bytes"])),
    ]
    screen.print(facts(rows))
