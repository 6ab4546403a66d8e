"""``sessionctl probe``."""

from typing import Any, Final

from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.daemon import Answer
from sessiond_cli.formats import count
from sessiond_cli.options import (
    DEFAULT_URL,
    JsonFlag,
    ProbedEngineOption,
    SessionArgument,
    TokenOption,
    UrlOption,
)
from sessiond_cli.output import Output, facts, print_causes, table
from sessiond_cli.probing import probed, where

_CELL_CHARS: Final = 64  # a digest
_TITLES: Final = ("FIELD", "CLASS", "STORED", "LIVE", "MEANING")


def probe(
    *,
    session: SessionArgument,
    engine: ProbedEngineOption = "",
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Tell whether a session would resume on an engine, and why not; changes nothing.

    The exit status is 0 whatever the answer is. With --json: "would_resume", the plan of the
    next turn, tokens, and "mismatches" field by field.
    """
    session_id = parse_session_id(session)
    found = probed(url, token, session_id, engine)
    Output(json).show(found, lambda screen: _print(screen, session_id, found))


def _print(screen: Console, session_id: str, found: Answer) -> None:
    loadable, total = count(found["tokens_loadable"]), count(found["tokens_total"])
    rows = [
        *where(session_id, found),
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
    _, _, keys = mismatch.get("detail", "").partition(": ")  # daemons of earlier versions lack it
    return [
        mismatch["field"],
        mismatch["field_class"],
        _short(mismatch["stored"]),
        _short(mismatch["live"]),
        f"{mismatch['sentence']} {keys}".rstrip(),
    ]


def _short(value: object) -> str:
    """Return a value that fits a cell; of an object its keys say more, and --json has all of it."""
    if isinstance(value, dict | list):
        return "…"
    shown = "-" if value is None else str(value)
    return shown if len(shown) <= _CELL_CHARS else f"{shown[: _CELL_CHARS - 1]}…"
