"""One event for each turn that a head tells of: where its tokens came from."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sessiond.domain.errors import RegistryUnavailableError, SessionNotFoundError
from sessiond.domain.session import Event

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.heads import Head, LastTurn
    from sessiond.domain.session import Presence, Session
    from sessiond.service.context import Context
    from sessiond.service.watch import Key

_log = logging.getLogger(__name__)
_MAX_NOTED = 100_000


class TurnTrail:
    """Writes the newest turn of a session to its trail, once.

    A head tells of the newest turn only. It is looked at before the next turn gets its ticket,
    before a suspend or resume, and by the sweeps. So while its engine lives, a turn is left out
    only if another one with a ticket ran beside it, or the engine forgot its KV.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._noted_unix_s: dict[Key, float] = {}

    async def note(self, session: Session, told: Head | Presence | None) -> None:
        """Write the session's newest turn down, if that was not done."""
        turn = told.last_turn if told else None
        key = session.tenant, session.session_id
        if not told or not turn or self._noted_unix_s.get(key) == turn.ended_unix_s:
            return
        try:
            added = await self._context.blocking(self._add, session, told.engine_id, turn)
        except (RegistryUnavailableError, SessionNotFoundError) as error:
            _log.warning("a turn left no trace in the registry: %s", error.message)
            return
        if added:
            self._context.observer.explained("turn", turn.causes)
        if len(self._noted_unix_s) >= _MAX_NOTED:
            self._noted_unix_s.clear()  # it only saves questions to the registry
        self._noted_unix_s[key] = turn.ended_unix_s

    def _add(self, session: Session, engine_id: str, turn: LastTurn) -> bool:
        detail = turn_json(engine_id, turn)
        return self._context.registry.add_event_once(
            Event(0, session.tenant, session.session_id, "turn", turn.ended_unix_s, detail)
        )


def turn_json(engine_id: str, turn: LastTurn) -> dict[str, JsonValue]:
    """Return what the interfaces tell of a turn."""
    split = turn.split
    return {
        "engine_id": engine_id,
        "ended_unix_s": turn.ended_unix_s,
        "prompt_tokens": split.prompt_tokens if split else None,
        "vram_tokens": split.vram_tokens if split else None,
        "ram_tokens": split.ram_tokens if split else None,
        "disk_tokens": split.disk_tokens if split else None,
        "computed_tokens": max(0, split.prompt_tokens - split.cached_tokens) if split else None,
        "tokens_total": turn.tokens_total,
        "tokens_restorable": turn.tokens_restorable,
        "diverged_at_token": turn.diverged_at_token,
        "causes": [cause.as_json() for cause in turn.causes],
    }
