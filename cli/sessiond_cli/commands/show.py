"""``sessionctl show``."""

import time
from typing import Any, Final

from rich.console import Console

from sessiond.domain.ids import parse_session_id
from sessiond_cli.daemon import Answer, Daemon
from sessiond_cli.formats import age, count, duration, size
from sessiond_cli.options import DEFAULT_URL, JsonFlag, SessionArgument, TokenOption, UrlOption
from sessiond_cli.output import Output, facts, table

_TITLES: Final = (
    "GENERATION",
    "MADE",
    "TOKENS",
    "CHUNKS",
    "RAW",
    "STORED",
    "NEW",
    "SHARED",
    "TOOK",
)


def show_session(
    *,
    session: SessionArgument,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Show a session: its state, its newest outcome, its snapshots.

    With --json: the session's object, with "snapshots", oldest first.
    """
    session_id = parse_session_id(session)
    with Daemon(url, token) as daemon:
        found = daemon.get(f"/v1/sessions/{session_id}")
        found["snapshots"] = daemon.get(f"/v1/sessions/{session_id}/snapshots")["snapshots"]
    Output(json).show(found, lambda screen: _print(screen, found))


def _print(screen: Console, session: Answer) -> None:
    now_unix_s = time.time()
    print_session(screen, session)
    if session["snapshots"]:
        rows = [_row(snapshot, now_unix_s) for snapshot in session["snapshots"]]
        screen.print(table(_TITLES, rows))
    else:
        screen.print("No snapshots.")


def print_session(screen: Console, session: Answer) -> None:
    """Print what a session's object tells, without its snapshots."""
    screen.print(facts(_facts(session, time.time())))


def _facts(session: Answer, now_unix_s: float) -> list[tuple[str, Any]]:
    timeout_s = session["idle_timeout_s"]
    rows = [
        ("session", session["session_id"]),
        ("tenant", session["tenant"]),
        ("state", session["state"]),
        ("model", session["model"] or "any"),
        ("created", age(session["created_unix_s"], now_unix_s)),
        ("changed", age(session["updated_unix_s"], now_unix_s)),
        ("idle timeout", "the daemon's" if timeout_s is None else duration(timeout_s)),
        ("TTL", _ttl(session["ttl_s"])),
        ("pinned", "yes" if session["pinned"] else "no"),
        ("on evicted", session["on_evicted"] or "the daemon's"),
        ("plan policy", _policy(session)),
        ("in engine", _presence(session["presence"], now_unix_s)),
    ]
    if session["forked_from"]:
        origin = session["forked_from"]
        rows.append(("forked from", f"{origin['session_id']}, generation {origin['generation']}"))
    if session["last_turn"]:
        rows += _last_turn(session["last_turn"])
    if session["unkept"]:
        rows.append(("not kept", f"the newest turn ({session['unkept']})"))
    if session["last_outcome"]:
        reason = session["last_reason"]
        rows.append(("last resume", session["last_outcome"] + (f" ({reason})" if reason else "")))
    return rows


def _policy(session: Answer) -> str:
    policy: str = session["plan_policy"] or "the daemon's"
    objective_s = session["objective_s"]
    return policy if objective_s is None else f"{policy}, objective {duration(objective_s)}"


def _last_turn(turn: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return where its tokens came from, and where they left what was known."""
    if turn["prompt_tokens"] is None:
        return [("last turn", "not known: it was not kept")]
    places = [("vram", "VRAM"), ("ram", "RAM"), ("disk", "disk"), ("computed", "computed")]
    parts = ", ".join(f"{count(turn[f'{key}_tokens'])} {name}" for key, name in places)
    rows = [("last turn", f"{count(turn['prompt_tokens'])} tokens: {parts}")]
    if turn["diverged_at_token"] is not None:
        total = count(turn["tokens_total"])
        rows.append(("diverged", f"at token {count(turn['diverged_at_token'])} of {total} known"))
    return rows


def _ttl(ttl_s: float | None) -> str:
    if ttl_s is None:
        return "the daemon's"
    return duration(ttl_s) if ttl_s else "none"


def _presence(presence: dict[str, Any] | None, now_unix_s: float) -> str:
    if presence is None:
        return "no"
    tokens = count(presence["head_tokens"])
    if presence["turns_in_flight"]:
        return f"{presence['engine_id']}, {tokens} tokens, a turn is running"
    idle = age(presence["idle_since_unix_s"], now_unix_s)
    return f"{presence['engine_id']}, {tokens} tokens, last used {idle}"


def _row(snapshot: dict[str, Any], now_unix_s: float) -> list[str]:
    return [
        str(snapshot["generation"]),
        age(snapshot["created_unix_s"], now_unix_s),
        f"{count(snapshot['tokens_restorable'])} of {count(snapshot['tokens_total'])}",
        count(snapshot["chunks"]),
        size(snapshot["raw_bytes"]),
        size(snapshot["stored_bytes"]),
        size(snapshot["new_bytes"]),
        size(snapshot["shared_bytes"]),
        duration(snapshot["seconds"]),
    ]
