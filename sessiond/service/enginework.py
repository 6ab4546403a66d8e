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
    after_unix_s: float = 0.0  #: nor earlier than this: until then, another one was computed

    def counts(self, now_unix_s: float) -> bool:
        """Whether the engine computes it, or soon will."""
        # A clock that was set back must not make the wait longer than it is.
        return self.has_come or abs(now_unix_s - self.since_unix_s) < PATIENCE_S


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

    def replaced(self, key: Key) -> None:
        """Take note of a session's newer ticket: an unused one is not counted on any more."""
        work = self._works.get(key)
        if work is not None and not work.has_come:
            del self._works[key]

    def ended(self, key: Key, operation_id: str, now_unix_s: float) -> None:
        """Take note that a turn has ended; those that another ticket was for stay."""
        work = self._works.get(key)
        if work is None or work.operation_id != operation_id:
            return
        computed_unix_s = min(now_unix_s, self._end_of(work, key, now_unix_s))
        names = list(self._works)
        for name in names[names.index(key) + 1 :]:
            other = self._works[name]
            if other.engine_id == work.engine_id:
                after_unix_s = max(other.after_unix_s, computed_unix_s)
                self._works[name] = replace(other, after_unix_s=after_unix_s)
        del self._works[key]

    def busy_s(self, engine_id: str, now_unix_s: float, key: Key | None = None) -> float:
        """Return how long an engine computes before it can begin with what comes now.

        :param key: the session that this is for: its next turn does not wait for a ticket of its
            own that nobody has used
        """
        ends = self._ends(engine_id, now_unix_s, key).values()
        return max(0.0, max(ends, default=0.0) - now_unix_s)

    def keep(self, engine_ids: Collection[str]) -> None:
        """Forget the work of all other engines."""
        for key, work in list(self._works.items()):
            if work.engine_id not in engine_ids:
                del self._works[key]

    def _end_of(self, work: Work, key: Key, now_unix_s: float) -> float:
        return self._ends(work.engine_id, now_unix_s).get(key, 0.0)

    def _ends(
        self, engine_id: str, now_unix_s: float, without: Key | None = None
    ) -> dict[Key, float]:
        """Return when each work that counts will have been done.

        :param without: the session whose unused ticket does not count
        """
        ends: dict[Key, float] = {}
        end_unix_s = 0.0
        for key, work in self._works.items():
            counts = work.has_come or (key != without and work.counts(now_unix_s))
            if work.engine_id == engine_id and counts:
                begin_unix_s = min(now_unix_s, max(work.since_unix_s, work.after_unix_s))
                end_unix_s = max(begin_unix_s, end_unix_s) + work.seconds
                ends[key] = end_unix_s
        return ends
