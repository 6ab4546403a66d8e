"""One round of ``sessiond bench store``: everybody stores the same bytes, then loads them.

Whoever begins is rotated, so that nobody always comes after the same other one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sessiond.app.bench.device import Device
from sessiond.app.bench.figures import rotated
from sessiond.app.bench.kv import KvSource
from sessiond.app.bench.ours import Ours
from sessiond.app.bench.region import Region, Window
from sessiond.app.bench.rivals import Safetensors, VllmFs
from sessiond.app.trials import drop_page_cache

_WARM_UP_CHUNKS = 16


class Storing(Protocol):
    """A contestant that stores and loads."""

    name: str

    def store(self, window: Window) -> float:
        """Store the window's slots; returns the seconds."""

    def load(self, window: Window) -> float:
        """Bring the bytes back into the slots; returns the seconds."""

    def discard(self, window: Window) -> None:
        """Remove what was stored."""


@dataclass
class Tally:
    """What one round has taken so far, by name."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stored_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    open_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    page_cache_dropped: bool = True


@dataclass
class Contest:
    """Who takes part, and where."""

    region: Region
    device: Device
    ours: Sequence[Ours]
    fs: Sequence[VllmFs]
    safetensors: Safetensors
    drop_page_cache: bool

    def warm_up(self, window: Window) -> None:
        """Let processes start, kernels compile and threads take memory, as in life long ago."""
        few = Window(window.number, window.first_chunk, window.slots[:_WARM_UP_CHUNKS])
        for one in self._storing:
            one.store(few)
            one.load(few)
            one.discard(few)

    def round(self, number: int, parts: Sequence[Window], source: KvSource) -> Tally:
        """Have everybody store and load every window once.

        :raises WrongBytesError: what was loaded is not what was stored.
        """
        tally = Tally()
        for window in parts:
            self.region.fill(window, source)
            self.safetensors.prepare(window)
            self._store_all(window, number + window.number, tally)
            self._load_all(window, number + window.number, tally)
            for one in self._storing:
                one.discard(window)
        return tally

    @property
    def _storing(self) -> list[Storing]:
        """The device is the first."""
        return [self.device, *self.ours, *self.fs]

    def _store_all(self, window: Window, turn: int, tally: Tally) -> None:
        for one in rotated(self._storing, turn):
            self._settle(tally)
            tally.seconds[_store_name(one)] += one.store(window)
        for ours in self.ours:
            tally.stored_bytes[ours.name] += ours.stored_bytes

    def _load_all(self, window: Window, turn: int, tally: Tally) -> None:
        loads: list[tuple[str, Callable[[Window], float]]] = [
            *((f"restore_{one.name}", one.load) for one in self._storing[1:]),
            (f"restore_{self.safetensors.name}", self.safetensors.load),
            ("device_read", self.device.load),
        ]
        for name, load in rotated(loads, turn):
            self.region.clear()
            self._settle(tally)
            tally.seconds[name] += load(window)
            if load != self.device.load:  # which reads into memory of its own
                self.region.check(window, name)
        for ours in self.ours:
            tally.open_s[ours.name] += ours.open_s

    def _settle(self, tally: Tally) -> None:
        """Have the device finish what came before, and the kernel forget files."""
        dropped = self.drop_page_cache and drop_page_cache()
        tally.page_cache_dropped = dropped and tally.page_cache_dropped


def _store_name(one: Storing) -> str:
    if isinstance(one, Device):
        return "device_write"
    return f"suspend_{one.name}" if isinstance(one, Ours) else f"store_{one.name}"
