"""``sessionctl resume``."""

from typing import Annotated, Any, Final

import typer
from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.care import plan_policy_choice
from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import count, duration, loss
from sessiond_cli.longcalls import run_long_call
from sessiond_cli.options import (
    DEFAULT_URL,
    JsonFlag,
    SessionArgument,
    TokenOption,
    UrlOption,
    WaitOption,
)
from sessiond_cli.output import Output, facts, print_causes, print_running, text

_STYLES: Final = {"warm": "green", "restored": "green", "failed": "red"}


def resume(  # noqa: PLR0913 - one parameter for each argument and option
    *,
    session: SessionArgument,
    wait: WaitOption = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="auto|always_load|never_load|objective",
            show_default=False,
            help="How to decide this time. Left out: as the session is set to.",
        ),
    ] = None,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Bring a session's KV back into an engine, and say what really happened.

    The outcome is warm, restored, partial or recomputed; each is exit status 0, since the
    session can go on, and everything but the first two comes with reasons. With --json: the
    resume's report, or the operation if --wait ended first.
    """
    session_id = parse_session_id(session)
    query = {} if policy is None else {"plan_policy": str(plan_policy_choice(policy))}
    output = Output(json)
    with Daemon(url, token) as daemon, output.working(f"Resuming {session_id} …"):
        answer, ended = run_long_call(daemon, session_id, "resume", wait, query)
    output.show(answer, lambda screen: (_print if ended else print_running)(screen, answer))


def _print(screen: Console, report: Answer) -> None:
    outcome = report["outcome"]
    restored, total = count(report["tokens_restored"]), count(report["tokens_total"])
    rows: list[tuple[str, Any]] = [
        ("session", report["session_id"]),
        ("outcome", text(outcome, _STYLES.get(outcome, "yellow"))),
        ("engine", report["engine_id"] or "-"),
        ("generation", str(report["generation"] or "-")),
        ("tokens", f"{restored} of {total}, {count(report['disk_tokens'])} from disk"),
        ("took", duration(report["seconds"])),
    ]
    if report.get("lossy"):  # daemons of earlier versions do not tell
        rows.append(("lossy", loss(report["lossy"])))
    screen.print(facts(rows))
    print_causes(screen, report["causes"])
    print_causes(screen, report.get("noted", []))
