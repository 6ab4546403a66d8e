"""What 'plan' and 'probe' ask the daemon, and both show of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond_cli.daemon import Daemon

if TYPE_CHECKING:
    from sessiond_cli.daemon import Answer


def probed(url: str, token: str, session_id: str, engine_id: str) -> Answer:
    """Return what a resume would find; with an empty *engine_id*, where it would be served."""
    query = {"engine": engine_id} if engine_id else None
    with Daemon(url, token) as daemon:
        return daemon.get(f"/v1/sessions/{session_id}/probe", query)


def where(session_id: str, found: Answer) -> list[tuple[str, str]]:
    """Return the rows that name session and engine."""
    engine = found["engine"]
    return [("session", session_id), ("engine", f"{engine['engine_id']}, {engine['model']}")]
