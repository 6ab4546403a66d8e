"""Telling of restore paths that lose against computing: a log line, an event, a metric."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessiondError
from sessiond.domain.slowpath import MOST_RESTORES, Restore, diagnose

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.samples import LoadSample
    from sessiond.domain.timing import TurnTiming
    from sessiond.service.context import Context
    from sessiond.service.planstate import Known
    from sessiond.service.watch import Key

_log = logging.getLogger(__name__)


class SlowPaths:
    """Looks at each load that has ended; used from the event loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._telling: set[asyncio.Task[None]] = set()

    def restored(self, known: Known, key: Key, load: LoadSample, timing: TurnTiming) -> None:
        """Take in one load, and tell if its path has become slow, or is so no more.

        :param key: the session that it was for: its trail tells of the path
        """
        engine_id, state = known.engine.engine_id, self._context.plans
        path = engine_id, load.tier
        restores = state.restores.setdefault(path, deque(maxlen=MOST_RESTORES))
        restores.append(Restore(load.at_unix_s, timing))
        before = state.slow_paths.get(path)
        found = diagnose(load.tier, tuple(restores), known.kind.curves.prefill, before)
        if found is not None:
            state.slow_paths[path] = found
        else:
            state.slow_paths.pop(path, None)
        if found is not None and before is None:
            _log.warning("engine %s: %s %s", engine_id, found.sentence, found.hint)
            self._tell(key, "restore_slow", {"engine_id": engine_id, **found.as_json()})
        elif before is not None and found is None:
            _log.warning("engine %s: loads from %s pay again", engine_id, load.tier)
            told: dict[str, JsonValue] = {"engine_id": engine_id, "tier": load.tier.value}
            self._tell(key, "restore_slow_over", told)

    async def close(self) -> None:
        """Wait until everything is told."""
        await asyncio.gather(*self._telling)

    def _tell(self, key: Key, kind: str, detail: dict[str, JsonValue]) -> None:
        task = asyncio.create_task(self._add(key, kind, detail))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _add(self, key: Key, kind: str, detail: dict[str, JsonValue]) -> None:
        add, now = self._context.registry.add_event, self._context.now()
        try:
            await self._context.blocking(add, *key, kind, now, detail)
        except SessiondError as error:  # the session may be deleted, the registry away
            _log.warning("an event was not written: %s", error.message)
