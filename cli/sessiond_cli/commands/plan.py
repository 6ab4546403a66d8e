"""``sessionctl plan``."""

from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.daemon import Answer
from sessiond_cli.options import (
    DEFAULT_URL,
    JsonFlag,
    ProbedEngineOption,
    SessionArgument,
    TokenOption,
    UrlOption,
)
from sessiond_cli.output import Output, facts, print_causes
from sessiond_cli.probing import probed, where


def plan(
    *,
    session: SessionArgument,
    engine: ProbedEngineOption = "",
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Tell whether a resume would load or compute again, with both times; changes nothing.

    With --json: "decision", which is null if there is nothing to decide, "engine" and "causes".
    """
    session_id = parse_session_id(session)
    found = probed(url, token, session_id, engine)
    told = {name: found[name] for name in ("engine", "decision", "causes")}
    Output(json).show(told, lambda screen: _print(screen, session_id, found))


def _print(screen: Console, session_id: str, found: Answer) -> None:
    rows = [
        *where(session_id, found),
        *((str(name), str(words)) for name, words in found["decision_table"]),
    ]
    if found["decision"] is None:
        rows.append(("choice", "none: nothing can be loaded"))
    screen.print(facts(rows))
    planned = {cause["reason"] for cause in (found["decision"] or {"causes": []})["causes"]}
    print_causes(screen, [one for one in found["causes"] if one["reason"] not in planned])
