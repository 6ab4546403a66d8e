"""The global pause: every daemon of the registry stops to suspend by itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from sessiond.domain.errors import InvalidInputError
from sessiond.domain.pause import Pause

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.ids import TenantId
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)
_SWITCH: Final = "pause"


class Pauses:
    """Sets the pause and takes it back; it is kept in the registry."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def current(self) -> Pause | None:
        """Return the pause that holds now.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        context = self._context
        value: dict[str, Any] | None = await context.blocking(context.registry.read_switch, _SWITCH)
        pause = Pause(**value) if value else None
        if pause and pause.is_over(context.now()):
            pause = None  # its row stays until the next one takes its place
        context.observer.paused(on=pause is not None)
        return pause

    async def pause(self, by: TenantId, reason: str, until_unix_s: float | None) -> Pause:
        """Pause all sweeps; an earlier pause is replaced.

        :raises InvalidInputError: the end is not in the future.
        """
        context = self._context
        wanted = Pause(by, context.now(), reason, until_unix_s)
        if wanted.is_over(context.now()):
            raise InvalidInputError("The end of a pause must be in the future.")
        value: dict[str, JsonValue] = {
            "by": wanted.by,
            "since_unix_s": wanted.since_unix_s,
            "reason": wanted.reason,
            "until_unix_s": wanted.until_unix_s,
        }
        await context.blocking(context.registry.set_switch, _SWITCH, value, wanted.since_unix_s)
        context.observer.paused(on=True)
        _log.info("the sweeps are paused by %r: %s", by, reason or "no reason given")
        return wanted

    async def unpause(self, by: TenantId) -> bool:
        """Take the pause back; return whether there was one that held."""
        context = self._context
        held = await self.current() is not None
        await context.blocking(context.registry.clear_switch, _SWITCH)
        context.observer.paused(on=False)
        if held:
            _log.info("the pause of the sweeps is taken back by %r", by)
        return held
