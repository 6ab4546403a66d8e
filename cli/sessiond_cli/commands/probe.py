"""``sessionctl probe``."""

from typing import Annotated, Any, Final

import typer
from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import count
from sessiond_cli.options import DEFAULT_URL, JsonFlag, SessionArgument, TokenOption, UrlOption
from sessiond_cli.output import Output, facts, print_causes, table

_CELL_CHARS: Final = 20
_TITLES: Final = ("FIELD", "CLASS", "STORED", "LIVE", "MEANING")


def probe(
    *,
    session: SessionArgument,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="ENGINE",
            show_default=False,
            help="An engine's id. Left out: the engine that would serve the session.",
        ),
    ] = "",
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Tell whether a session would resume on an engine, and why not; changes nothing.

    The exit status is 0 whatever the answer is. With --json: "would_resume", the plan of the
    next turn, tokens, and "mismatches" field by field.
    """
    session_id = parse_session_id(session)
    with Daemon(url, token) as daemon:
        query = {"engine": engine} if engine else None
        found = daemon.get(f"/v1/sessions/{session_id}/probe", query)
    Output(json).show(found, lambda screen: _print(screen, session_id, found))


def _print(screen: Console, session_id: str, found: Answer) -> None:
    loadable, total = count(found["tokens_loadable"]), count(found["tokens_total"])
    rows = [
        ("session", session_id),
        ("engine", f"{found['engine']['engine_id']}, {found['engine']['model']}"),
        ("would resume", "yes" if found["would_resume"] else "no"),
        ("next turn", found["plan"]),
        ("snapshot", str(found["generation"] or "none")),
        ("tokens", f"{loadable} of {total}; {count(found['tokens_restorable'])} restorable"),
    ]
    screen.print(facts(rows))
    if found["mismatches"]:
        screen.print(table(_TITLES, [_row(mismatch) for mismatch in found["mismatches"]]))
    print_causes(screen, found["causes"])


def _row(mismatch: dict[str, Any]) -> list[str]:
    return [
        mismatch["field"],
        mismatch["field_class"],
        _short(mismatch["stored"]),
        _short(mismatch["live"]),
        mismatch["sentence"],
    ]


def _short(value: object) -> str:
    """Return a value that fits a cell; --json has all of it."""
    shown = "-" if value is None else str(value)
    return shown if len(shown) <= _CELL_CHARS else f"{shown[: _CELL_CHARS - 1]}…"
