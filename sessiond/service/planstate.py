"""What planning remembers between two plans: curves, breakers, and plans under way."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from sessiond.domain.breaker import Breaker, BreakerState
from sessiond.domain.calibration import ASSUMED, Calibration, Curves
from sessiond.service.enginework import EngineWork

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Iterable

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.ids import EngineId
    from sessiond.domain.plans import Plan
    from sessiond.domain.samples import Tier
    from sessiond.domain.slowpath import Restore, SlowPath

K = TypeVar("K")
V = TypeVar("V")

#: Of so many, the plan of one that runs, or was measured twice, is among the newest.
_MOST_KNOWN: Final = 4096


@dataclass
class Kind:
    """What is known of one kind of engine; changed in the event loop alone."""

    digest: str
    calibration: Calibration = field(default_factory=Calibration)
    curves: Curves = ASSUMED
    assumed: Curves = ASSUMED  #: what counts where nothing was measured
    fitted_unix_s: float = 0.0
    is_loaded: bool = False  #: whether its file was looked at
    is_looked_at: bool = False  #: whether a first look has ended
    is_unfitted: bool = False  #: whether samples came since the curves were fitted
    is_unsaved: bool = False
    fitting: asyncio.Task[None] | None = None
    rest_until_s: float = 0.0  #: monotonic; before it, the curves are not fitted again

    @property
    def is_measured(self) -> bool:
        """Whether there is more than assumptions to plan with."""
        return self.curves.prefill.trust.samples > 0


@dataclass(frozen=True)
class Known:
    """One engine that was planned for."""

    engine: EngineInfo  #: as it was at first sight
    kind: Kind


@dataclass(frozen=True)
class Underway:
    """A plan whose end was not heard of yet."""

    engine_id: EngineId
    plan: Plan
    began_unix_s: float


@dataclass
class PlanState:
    """All of it, for one daemon; used from one event loop."""

    kinds: dict[str, Kind] = field(default_factory=dict)  #: by digest
    engines: dict[str, Known] = field(default_factory=dict)  #: by engine id
    breakers: dict[tuple[str, Tier], Breaker] = field(default_factory=dict)
    #: The newest loads of each path, and what is wrong with it.
    restores: dict[tuple[str, Tier], deque[Restore]] = field(default_factory=dict)
    slow_paths: dict[tuple[str, Tier], SlowPath] = field(default_factory=dict)
    looking: dict[str, asyncio.Task[None]] = field(default_factory=dict)  #: by engine id
    work: EngineWork = field(default_factory=EngineWork)
    _underway: OrderedDict[str, Underway] = field(default_factory=OrderedDict)
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def begin(self, operation_id: str, underway: Underway) -> None:
        """Remember the plan of a turn, or of one round of a resume, by its ticket."""
        self._underway[operation_id] = underway
        _bound(self._underway)

    def plan_of(self, operation_id: str) -> Plan | None:
        """Return the plan of one that has not ended."""
        known = self._underway.get(operation_id)
        return known.plan if known else None

    def end(self, operation_id: str) -> Underway | None:
        """Return the plan of one that has ended, once."""
        return self._underway.pop(operation_id, None)

    def slow_paths_of(self, engine_id: str) -> tuple[SlowPath, ...]:
        """Return what is wrong with the restore paths of an engine."""
        return tuple(one for key, one in self.slow_paths.items() if key[0] == engine_id)

    @property
    def paused_engines(self) -> int:
        """How many engines load nothing from disk, or one load to try."""
        return sum(one.state is not BreakerState.CLOSED for one in self.breakers.values())

    def stop_looking(self, engine_id: str) -> None:
        """Give up the first look at an engine: somebody wants something of it."""
        looking = self.looking.get(engine_id)
        if looking is not None:
            looking.cancel()

    def is_new(self, operation_id: str) -> bool:
        """Whether this is the first time that its measurement is heard of."""
        if operation_id in self._seen:
            return False
        self._seen[operation_id] = None
        _bound(self._seen)
        return True

    def keep(self, engine_ids: Iterable[str]) -> None:
        """Forget all other engines: their ids never come again."""
        live = set(engine_ids)
        self.engines = {name: known for name, known in self.engines.items() if name in live}
        self.breakers = {key: one for key, one in self.breakers.items() if key[0] in live}
        self.restores = {key: one for key, one in self.restores.items() if key[0] in live}
        self.slow_paths = {key: one for key, one in self.slow_paths.items() if key[0] in live}
        self.work.keep(live)


def _bound(known: OrderedDict[K, V]) -> None:
    while len(known) > _MOST_KNOWN:
        known.popitem(last=False)
