"""What a turn does if its engine has lost the KV that it is believed to have."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sessiond.domain.samples import Tier

if TYPE_CHECKING:
    from sessiond.service.context import Context
    from sessiond.service.plans import Decision, Planner
    from sessiond.service.resume import Prospect
    from sessiond.service.watch import Key

#: So long a decision counts for the turns that follow: agents call tools, and are back at once.
_LASTS_S: Final = 10.0
#: Of so many sessions, one with a turn every few seconds is among the newest.
_MOST_KNOWN: Final = 4096


@dataclass(frozen=True)
class _Known:
    decision: Decision
    basis: tuple[object, ...]
    since_unix_s: float


class WarmPlans:
    """Decides for turns; where an engine is believed to have it all, not for each anew.

    There the decision matters only if the engine has evicted the KV meanwhile, without a word.
    But then it does: a disk that is slow, or not to be read, must not be read for that turn.
    """

    def __init__(self, context: Context, planner: Planner) -> None:
        self._context = context
        self._planner = planner
        self._known: OrderedDict[Key, _Known] = OrderedDict()

    async def decide(self, prospect: Prospect) -> Decision:
        """Return what a turn on the prospect's engine is to do."""
        key = prospect.session.tenant, prospect.session.session_id
        known, basis, now = self._known.get(key), self._basis(prospect), self._context.now()
        # A clock that was set back must not make it last longer.
        is_fresh = known is not None and abs(now - known.since_unix_s) < _LASTS_S
        if known is not None and is_fresh and known.basis == basis:
            self._context.plans.stop_looking(prospect.engine.engine_id)
            return known.decision
        decision = self._planner.decide(prospect, await self._planner.plan(prospect, in_one=True))
        self._known.pop(key, None)
        if decision.plan is not None and decision.is_resident and not decision.plan.is_trial:
            self._known[key] = _Known(decision, basis, now)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return decision

    def _basis(self, prospect: Prospect) -> tuple[object, ...]:
        """Return what a decision depends on, but for estimates, which change slowly."""
        session, engine, manifest = prospect.session, prospect.engine, prospect.manifest
        located = prospect.sight.located
        here = located is not None and located.engine.engine_id == engine.engine_id
        return (
            # A head that has lost its tokens, or begun others, tells that KV is gone.
            located.head.main.began_unix_s if located and here and located.head.main else None,
            engine.engine_id,
            engine.ram_tier_chunks,
            prospect.adapter_digest,
            prospect.hindrances,
            (manifest.generation, manifest.created_unix_s) if manifest else None,
            session.created_unix_s,
            session.plan_policy,
            session.objective_s,
            self._context.plans.breakers.get((engine.engine_id, Tier.NVME)),
        )
