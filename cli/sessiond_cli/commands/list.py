"""``sessionctl list``."""

import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from sessiond_cli.daemon import Answer, Daemon, Query
from sessiond_cli.formats import age, count, size
from sessiond_cli.options import (
    DEFAULT_URL,
    Filters,
    JsonFlag,
    ModelFilter,
    PinnedFilter,
    SnapshotFilter,
    TokenOption,
    UrlOption,
)
from sessiond_cli.output import Output, table, text

_PAGE: Final = 500
_STYLES: Final = {"running": "green", "active": "green", "suspended": "cyan"}
_TITLES: Final = (
    "SESSION",
    "STATE",
    "MODEL",
    "TOKENS",
    "STORED",
    "CHANGED",
    "PINNED",
    "LAST RESUME",
)


def list_sessions(  # noqa: PLR0913 - one parameter per option
    *,
    model: ModelFilter = None,
    has_snapshot: SnapshotFilter = None,
    pinned: PinnedFilter = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Begin behind this session.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Show at most this many.")
    ] = 1000,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """List sessions, ordered by id.

    TOKENS and STORED are those of the newest snapshot. With --json: an object with "sessions"
    and "next_after", which is null if there are no more, else what --after needs.
    """
    with Daemon(url, token) as daemon:
        found = _collect(daemon, Filters(model, has_snapshot, pinned), after, limit)
    Output(json).show(found, lambda screen: _print(screen, found))


def _collect(daemon: Daemon, filters: Filters, after: str | None, limit: int) -> Answer:
    sessions: list[Any] = []
    while True:
        query: dict[str, str | int | bool] = {**filters.as_json()}
        query["limit"] = min(_PAGE, limit - len(sessions))
        if after is not None:
            query["after"] = after
        page = daemon.get("/v1/sessions", _lower(query))
        sessions += page["sessions"]
        after = page["next_after"]
        if after is None or len(sessions) >= limit:
            return {"sessions": sessions, "next_after": after}


def _lower(query: Query) -> Query:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
    }


def _print(screen: Console, found: Answer) -> None:
    if not found["sessions"]:
        screen.print("No sessions.")
        return
    now_unix_s = time.time()
    screen.print(table(_TITLES, [_row(session, now_unix_s) for session in found["sessions"]]))
    if found["next_after"] is not None:
        screen.print(text(f"There are more: --after {found['next_after']}"))


def _row(session: dict[str, Any], now_unix_s: float) -> list[Any]:
    snapshot = session["snapshot"]
    last = (session["last_outcome"] or "-", session["last_reason"])
    return [
        session["session_id"],
        text(session["state"], _STYLES.get(session["state"], "")),
        session["model"] or "-",
        count(snapshot["tokens_restorable"]) if snapshot else "-",
        size(snapshot["stored_bytes"]) if snapshot else "-",
        age(session["updated_unix_s"], now_unix_s),
        "yes" if session["pinned"] else "-",
        " ".join(part for part in last if part),
    ]
