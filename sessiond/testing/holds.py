"""Holding a thread right before a step, as one that freezes there."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from sessiond.registry import Registry
    from sessiond.store.store import Store
    from sessiond.store.upkeep import Upkeep

#: Longer than anything takes: who waits for so long has failed.
LONG_S = 60.0


class Hold:
    """Holds the first thread that comes to a step of a part, and may let the step fail."""

    def __init__(
        self, part: Store | Upkeep | Registry, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """Wait for one at the method *step*."""
        self.error: Exception | None = None
        self._arrived, self._go_on, self._ended = Event(), Event(), Event()
        self._monkeypatch = monkeypatch
        real = getattr(part, step)

        def held(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
            self._arrived.set()
            try:
                assert self._go_on.wait(LONG_S)
                if self.error is not None:
                    raise self.error
                return real(*arguments, **options)
            finally:
                self._ended.set()

        monkeypatch.setattr(part, step, held)

    async def arrived(self) -> None:
        """Wait until one is held; others pass from now on."""
        assert await asyncio.to_thread(self._arrived.wait, LONG_S)
        self._monkeypatch.undo()

    async def go_on(self) -> None:
        """Let it do the step."""
        self._go_on.set()
        assert await asyncio.to_thread(self._ended.wait, LONG_S)
