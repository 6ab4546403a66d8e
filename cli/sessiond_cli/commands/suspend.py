"""``sessionctl suspend``."""

from typing import Annotated

import typer
from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.care import on_evicted_choice
from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import count, duration, loss, size
from sessiond_cli.longcalls import run_long_call
from sessiond_cli.options import (
    DEFAULT_URL,
    JsonFlag,
    SessionArgument,
    TokenOption,
    UrlOption,
    WaitOption,
)
from sessiond_cli.output import Output, facts, print_causes, print_running

OnEvictedOption = Annotated[
    str | None,
    typer.Option(
        "--on-evicted",
        metavar="prefix|recompute|skip",
        show_default=False,
        help="What to do about KV that was evicted, this time. Left out: as the session is set.",
    ),
]


def suspend(  # noqa: PLR0913 - one parameter for each argument and option
    *,
    session: SessionArgument,
    wait: WaitOption = None,
    on_evicted: OnEvictedOption = None,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Write a session's KV to the store, and say how much of it.

    A turn that arrives meanwhile is served. With --json: the suspend's report, or the
    operation if --wait ended first.
    """
    session_id = parse_session_id(session)
    query = {} if on_evicted is None else {"on_evicted": str(on_evicted_choice(on_evicted))}
    output = Output(json)
    with Daemon(url, token) as daemon, output.working(f"Suspending {session_id} …"):
        answer, ended = run_long_call(daemon, session_id, "suspend", wait, query)
    output.show(answer, lambda screen: (_print if ended else print_running)(screen, answer))


def _print(screen: Console, report: Answer) -> None:
    snapshot = report["snapshot"]
    written = size(snapshot["new_bytes"]) if report["rounds"] else "nothing: all was there already"
    rows = [
        ("suspended", report["session_id"]),
        ("generation", str(snapshot["generation"])),
        ("tokens", f"{count(snapshot['tokens_restorable'])} of {count(snapshot['tokens_total'])}"),
        ("chunks", count(snapshot["chunks"])),
        ("size", f"{size(snapshot['stored_bytes'])} on disk, {size(snapshot['raw_bytes'])} of KV"),
        ("written", written),
        ("took", duration(report["seconds"])),
    ]
    if snapshot.get("lossy"):  # daemons of earlier versions do not tell
        rows.append(("lossy", loss(snapshot["lossy"])))
    if report["missing_tokens"]:
        rows.append(("missing", f"{count(report['missing_tokens'])} tokens"))
    if report["recomputed_tokens"]:
        rows.append(("recomputed", f"{count(report['recomputed_tokens'])} tokens"))
    screen.print(facts(rows))
    print_causes(screen, report["causes"])
