"""One event for each turn that a head tells of: where its tokens came from."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
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
        self._writing: dict[Key, asyncio.Task[None]] = {}  #: of each session, the last begun

    def note_soon(self, session: Session, told: Head | Presence | None) -> None:
        """Do the same as :meth:`note`, and let nobody wait for the registry's disk."""
        if told is None or not self._is_new(session, told.last_turn):
            return
        key = session.tenant, session.session_id
        task = asyncio.create_task(self._after(self._writing.get(key), session, told))
        self._writing[key] = task
        task.add_done_callback(partial(self._written, key))

    async def settle(self, key: Key | None = None) -> None:
        """Wait until everything is written that a session, or any, has to note."""
        tasks = [task for one, task in self._writing.items() if key in (None, one)]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def note(self, session: Session, told: Head | Presence | None) -> None:
        """Write the session's newest turn down, if that was not done, after any earlier one."""
        key = session.tenant, session.session_id
        if told is not None and self._is_new(session, told.last_turn):
            await self._after(self._writing.get(key), session, told)

    def _is_new(self, session: Session, turn: LastTurn | None) -> bool:
        key = session.tenant, session.session_id
        return turn is not None and self._noted_unix_s.get(key) != turn.ended_unix_s

    def _written(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._writing.get(key) is task:
            del self._writing[key]

    async def _after(
        self, earlier: asyncio.Task[None] | None, session: Session, told: Head | Presence
    ) -> None:
        if earlier is not None:  # the trail has turns in their order
            await asyncio.wait((earlier,))
        turn, key = told.last_turn, (session.tenant, session.session_id)
        if turn is None or not self._is_new(session, turn):
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
        "turn_id": turn.turn_id,
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
