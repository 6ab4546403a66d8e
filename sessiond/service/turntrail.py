"""One event for each turn that a head or an answer tells of: where its tokens came from."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import RegistryUnavailableError, SessionNotFoundError
from sessiond.domain.session import Event
from sessiond.service.reports import in_words
from sessiond.service.returns import used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.heads import Head, LastTurn
    from sessiond.domain.plans import Plan
    from sessiond.domain.session import Presence, Session
    from sessiond.service.context import Context
    from sessiond.service.plans import Planner
    from sessiond.service.watch import Key

_log = logging.getLogger(__name__)
_MAX_NOTED: Final = 100_000
#: So long, turns that nobody waits for are gathered: to write one costs as much as to pass it on.
_GATHER_S: Final = 0.25


@dataclass(frozen=True)
class Told:
    """A turn, as its own answer tells of it."""

    engine_id: str
    last_turn: LastTurn


@dataclass(frozen=True)
class _Note:
    session: Session
    engine_id: str
    turn: LastTurn
    plan: Plan | None  #: that its ticket was given by, if that is remembered
    #: Set when it is written, or cannot be.
    over: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def key(self) -> Key:
        return self.session.tenant, self.session.session_id

    @property
    def event(self) -> Event:
        detail = turn_json(self.engine_id, self.turn)
        detail["plan"] = self.plan.as_json() if self.plan else None
        return Event(0, *self.key, "turn", self.turn.ended_unix_s, detail)


class TurnTrail:
    """Writes the newest turn of a session to its trail, once.

    A head tells of the newest turn only. It is looked at before the next turn gets its ticket,
    before a suspend or resume, and by the sweeps. So while its engine lives, a turn is left out
    only if another one with a ticket ran beside it, or the engine forgot its KV.
    """

    def __init__(self, context: Context, planner: Planner) -> None:
        self._context = context
        self._planner = planner
        self._noted_unix_s: dict[Key, float] = {}
        self._notes: list[_Note] = []  #: that are not over, in the order of their coming
        #: That could not be written, by session: nobody else remembers their plans.
        self._failed: dict[Key, _Note] = {}
        self._hurry = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def note_soon(self, session: Session, told: Head | Presence | Told | None) -> None:
        """Do the same as :meth:`note`, and let nobody wait for the registry's disk."""
        turn, key = told.last_turn if told else None, (session.tenant, session.session_id)
        if told is not None and not isinstance(told, Told) and told.turns_in_flight:
            self._planner.came(key)
        if told is None or turn is None or self._noted_unix_s.get(key) == turn.ended_unix_s:
            return
        if len(self._noted_unix_s) >= _MAX_NOTED:
            self._noted_unix_s.clear()  # it only saves questions to the registry
        self._noted_unix_s[key] = turn.ended_unix_s
        failed = self._failed.pop(key, None)
        again = failed is not None and failed.turn.ended_unix_s == turn.ended_unix_s
        plan = failed.plan if failed and again else self._planner.plan_of(turn.turn_id)
        turn_id = turn.turn_id or str(turn.ended_unix_s)
        self._planner.ended(told.engine_id, key, turn_id, turn.timing)
        self._notes.append(_Note(session, told.engine_id, turn, plan))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def settle(self, key: Key | None = None) -> None:
        """Wait until everything is written that a session, or any, has to note."""
        awaited = [note.over for note in self._notes if key in (None, note.key)]
        if awaited:
            self._hurry.set()
            await asyncio.wait(awaited)

    async def note(self, session: Session, told: Head | Presence | None) -> None:
        """Write the session's newest turn down, if that was not done, after any earlier one."""
        self.note_soon(session, told)
        await self.settle((session.tenant, session.session_id))

    async def _write(self) -> None:
        while self._notes:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_S):
                    await self._hurry.wait()
            self._hurry.clear()
            gathered = tuple(self._notes)
            try:
                await self._written(gathered)
            except Exception:  # noqa: BLE001 - the next ones are written all the same
                _log.exception("turns left no trace in the registry")
                for note in gathered:
                    self._forget(note)
            finally:
                del self._notes[: len(gathered)]
                for note in gathered:
                    note.over.set_result(None)
        self._writer = None

    async def _written(self, notes: Sequence[_Note]) -> None:
        for note, added in zip(notes, await self._context.blocking(self._add, notes), strict=True):
            if isinstance(added, Exception):
                _log.warning("a turn left no trace in the registry: %s", added)
                self._forget(note)
            elif added:
                self._explain(note)

    def _explain(self, note: _Note) -> None:
        causes = note.turn.causes
        self._context.observer.explained("turn", causes)
        if causes:
            _log.info("turn of session %s of tenant %s: %s", *reversed(note.key), in_words(causes))

    def _forget(self, note: _Note) -> None:
        """Let whoever sees a turn next try again to write it down."""
        if self._noted_unix_s.get(note.key) != note.turn.ended_unix_s:
            return  # there is a newer one
        del self._noted_unix_s[note.key]
        if len(self._failed) >= _MAX_NOTED:
            self._failed.clear()
        self._failed[note.key] = note

    def _add(self, notes: Sequence[_Note]) -> list[bool | Exception]:
        """Add the events of turns, and return of each whether it was new, or what went wrong."""
        added: list[bool | Exception] = []
        for note in notes:
            try:
                created_unix_s = note.session.created_unix_s
                added.append(self._context.registry.add_event_once(note.event, created_unix_s))
                if added[-1] is True:
                    self._use(note)
            except SessionNotFoundError as error:
                added.append(error)
            except RegistryUnavailableError as error:
                return added + [error] * (len(notes) - len(added))
        return added

    def _use(self, note: _Note) -> None:
        split = note.turn.split
        disk_tokens = split.disk_tokens if split else 0
        used(self._context, note.session, note.turn.ended_unix_s, disk_tokens=disk_tokens)


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
        "timing": turn.timing.as_json() if turn.timing else None,
    }
