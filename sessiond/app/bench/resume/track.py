"""What lies beside all contestants: the bare device, and text for requests that warm up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from sessiond.app.bench.arrivals import prompts
from sessiond.app.bench.device import Device
from sessiond.app.bench.region import Region, windows
from sessiond.app.bench.resume.options import UNIT_TOKENS
from sessiond.app.bench.resume.sessions import Context

_SLOTS = 64
_SLOT_BYTES = 3 << 20
#: Far behind the pieces of text that sessions take.
_FIRST_WARM_UP = 1000


class Track:
    """Use it as a context. Its folder is the run's.

    :param tokens: of a text
    """

    def __init__(self, folder: Path, tokens: Sequence[int]) -> None:
        self.folder = folder
        self._tokens = tokens
        self._warm_ups = 0
        self._region = Region(_SLOTS, _SLOT_BYTES)
        (self._window,) = windows(_SLOTS, _SLOTS)
        first = self._region.slot(self._window.slots[0])
        first[:] = np.random.default_rng(0).integers(0, 256, len(first), np.uint8)
        self._device = Device(folder, self._region)

    def __enter__(self) -> Self:
        self._device.store(self._window)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.discard(self._window)
        self._region.close()

    def device_bytes_s(self) -> float:
        """Read a file of about a long context's size into huge pages, past the page cache."""
        return _SLOTS * _SLOT_BYTES / self._device.load(self._window)

    def warm_up(self) -> Context:
        """Return a short prompt that no engine has seen."""
        self._warm_ups += 1
        place = _FIRST_WARM_UP + self._warm_ups
        (prompt,) = prompts(self._tokens, UNIT_TOKENS, place, 1)
        return Context(f"warm-up-{self._warm_ups}", tuple(prompt))
