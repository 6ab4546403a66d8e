"""What engines have to compute because plans have them compute it: others wait behind that."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from sessiond.service.watch import Key

#: A turn that has not come so long after its ticket is not counted on any more. Sweeps, which see
#: the turns of agents that call vLLM directly, look several times meanwhile.
PATIENCE_S: Final = 15.0
#: Of so many, one that is computed is among the newest.
_MOST: Final = 1000


@dataclass(frozen=True)
class Work:
    """What one turn computes before its first token."""

    operation_id: str  #: of the turn's ticket
    engine_id: str
    seconds: float
    since_unix_s: float  #: it is not begun earlier
    has_come: bool = False  #: whether the engine has the turn

    def counts(self, now_unix_s: float) -> bool:
        """Whether the engine computes it, or soon will."""
        return self.has_come or now_unix_s - self.since_unix_s < PATIENCE_S


class EngineWork:
    """The newest work of each session; each engine does one after the other.

    A ticket says only that a turn may come. It counts for a while; from then on, only if the
    turn has come.
    """

    def __init__(self) -> None:
        self._works: OrderedDict[Key, Work] = OrderedDict()

    def expect(self, key: Key, work: Work) -> None:
        """Count on a turn that has got its ticket, unless the session has one that runs."""
        known = self._works.get(key)
        now_unix_s = work.since_unix_s
        if known and known.has_come and self._end_of(known, key, now_unix_s) > now_unix_s:
            return
        self._works.pop(key, None)
        self._works[key] = work
        if len(self._works) > _MOST:
            self._works.popitem(last=False)

    def came(self, key: Key, now_unix_s: float) -> None:
        """Take note that an engine has the session's turn."""
        work = self._works.get(key)
        if work is None or work.has_come:
            return
        if work.counts(now_unix_s):
            self._works[key] = replace(work, has_come=True)
            return
        self._works[key] = replace(work, has_come=True, since_unix_s=now_unix_s)
        self._works.move_to_end(key)  # what was counted on meanwhile goes before it

    def ended(self, key: Key, operation_id: str) -> None:
        """Take note that a turn has ended; those that another ticket was for stay."""
        work = self._works.get(key)
        if work is not None and work.operation_id == operation_id:
            del self._works[key]

    def busy_s(self, engine_id: str, now_unix_s: float) -> float:
        """Return how long an engine computes before it can begin with what comes now."""
        ends = self._ends(engine_id, now_unix_s).values()
        return max(0.0, max(ends, default=0.0) - now_unix_s)

    def keep(self, engine_ids: Collection[str]) -> None:
        """Forget the work of all other engines."""
        for key, work in list(self._works.items()):
            if work.engine_id not in engine_ids:
                del self._works[key]

    def _end_of(self, work: Work, key: Key, now_unix_s: float) -> float:
        return self._ends(work.engine_id, now_unix_s).get(key, 0.0)

    def _ends(self, engine_id: str, now_unix_s: float) -> dict[Key, float]:
        """Return when each work that counts will have been done."""
        ends: dict[Key, float] = {}
        end_unix_s = 0.0
        for key, work in self._works.items():
            if work.engine_id == engine_id and work.counts(now_unix_s):
                end_unix_s = max(work.since_unix_s, end_unix_s) + work.seconds
                ends[key] = end_unix_s
        return ends
