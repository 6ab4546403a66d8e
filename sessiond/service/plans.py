"""Load or recompute: the plan of each resume and each turn, and what became of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sessiond.domain.breaker import Breaker, BreakerState, Passage
from sessiond.domain.estimates import exactly
from sessiond.domain.planner import plan as planned
from sessiond.domain.planner import queue
from sessiond.domain.plans import Plan, PlanChoice, PlanInputs, PlanPolicy
from sessiond.domain.reasons import Reason
from sessiond.domain.samples import Tier
from sessiond.domain.slowpath import computing_s
from sessiond.service.calibration import Calibrator
from sessiond.service.enginework import Work
from sessiond.service.measured import errors_of
from sessiond.service.planinputs import resident_tokens, room_tokens, spans_of, stops_of
from sessiond.service.planstate import Underway
from sessiond.service.slowpaths import SlowPaths

if TYPE_CHECKING:
    from sessiond.domain.estimates import Estimate
    from sessiond.domain.samples import LoadSample
    from sessiond.domain.timing import TurnTiming
    from sessiond.service.context import Context
    from sessiond.service.planstate import Kind, Known
    from sessiond.service.resume import Prospect
    from sessiond.service.watch import Key

_log = logging.getLogger(__name__)

#: A load that takes so many times as long as computing surely would is given up.
_LIMIT_FACTOR: Final = 3.0
_LIMIT_S: Final = 1.0
_MEASURING: Final = frozenset({PlanPolicy.AUTO, PlanPolicy.OBJECTIVE})


@dataclass(frozen=True)
class Wish:
    """What a call wants, instead of what its session is set to."""

    policy: PlanPolicy | None = None
    objective_s: float | None = None

    @property
    def text(self) -> str | None:
        """What makes two calls differ; ``None`` if it wants nothing."""
        wants = self.policy is not None or self.objective_s is not None
        return f"{self.policy} {self.objective_s}" if wants else None


@dataclass(frozen=True)
class Decision:
    """What is to be asked of an engine for one session."""

    plan: Plan | None  #: ``None``: none could be made, all is loaded
    load_tokens: int  #: to be brought into the engine; 0: nothing is asked of it
    may_load: bool  #: whether from disk; what the engine still has is used anyhow
    limit_s: float = 0.0  #: for reading; 0: none
    is_resident: bool = False  #: whether the engine is believed to have it all

    @property
    def is_whole(self) -> bool:
        """Whether all that can be loaded is."""
        return self.may_load and (self.plan is None or self.plan.choice is PlanChoice.LOAD)

    @property
    def is_left_to_engine(self) -> bool:
        """Whether nothing but room is in the way of the rest: the engine knows, and tells, that."""
        causes = self.plan.causes if self.plan else ()
        return {cause.reason for cause in causes} == {Reason.RAM_TIER_TOO_SMALL}


class Planner:
    """Decides, and learns from what became of it. A plan never costs a session anything but time:
    where none can be made, everything is loaded.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.plans
        self.calibrator = Calibrator(context)
        self.slow_paths = SlowPaths(context)

    async def plan(
        self, prospect: Prospect, wish: Wish | None = None, *, in_one: bool = False
    ) -> Plan | None:
        """Return the plan of now; ``None`` if nothing can be loaded, or planning failed.

        :param in_one: it is to be done by one request, so no more than the RAM tier can be loaded
        """
        self._state.stop_looking(prospect.engine.engine_id)
        if prospect.manifest is None or not prospect.target_tokens:
            return None
        try:
            kind = await self.calibrator.see(prospect.engine)
            return self._planned(prospect, kind, wish or Wish(), in_one=in_one)
        except Exception:  # noqa: BLE001 - a plan costs nobody more than time
            _log.exception("a plan could not be made, so everything is loaded")
            return None

    def decide(self, prospect: Prospect, plan: Plan | None) -> Decision:
        """Return what the plan means for the prospect's engine."""
        target = prospect.target_tokens
        if plan is None:
            return Decision(None, target, may_load=target > 0)
        resident = resident_tokens(prospect)
        whole = resident >= target
        if not plan.loads:
            return Decision(plan, resident, may_load=False, is_resident=whole)
        limit_s = self._limit_s(plan)
        return Decision(plan, plan.load_tokens, may_load=True, limit_s=limit_s, is_resident=whole)

    def begin(self, operation_id: str, prospect: Prospect, decision: Decision) -> None:
        """Take note that a plan is carried out, by a turn or a round of a resume."""
        plan, engine_id, now = decision.plan, prospect.engine.engine_id, self._context.now()
        if plan is None:
            return
        self._state.begin(operation_id, Underway(engine_id, plan, now))
        if decision.may_load and not decision.is_resident:
            key = engine_id, Tier.NVME
            self._state.breakers[key] = self._breaker(engine_id).with_trial(now)
        reason = plan.causes[0].reason.value if plan.causes else ""
        self._context.observer.planned(plan.choice.value, reason)

    def computes(self, operation_id: str, prospect: Prospect, plan: Plan | None) -> None:
        """Take note that a turn will compute what the plan says, if it comes; ``None``: nothing."""
        session, engine_id, now = prospect.session, prospect.engine.engine_id, self._context.now()
        key = session.tenant, session.session_id
        if plan is None or plan.loads:
            self._state.work.replaced(key)
            return
        work = Work(operation_id, engine_id, plan.recompute.prefill_s, now)
        self._state.work.expect(key, work)

    def came(self, key: Key) -> None:
        """Take note that an engine has a turn of the session."""
        self._state.work.came(key, self._context.now())

    def ended(self, engine_id: str, key: Key, operation_id: str, timing: TurnTiming | None) -> None:
        """Learn from one request; the same one told again, by a head and an answer, once.

        :param key: the session that it was for
        """
        self._state.work.ended(key, operation_id, self._context.now())
        known = self._state.engines.get(engine_id)
        if timing is None or known is None or not self._state.is_new(operation_id):
            return
        try:
            self._learn(known, key, self._state.end(operation_id), timing)
        except Exception:  # noqa: BLE001 - a plan costs nobody more than time
            _log.exception("nothing was learned from a request's timing")

    def plan_of(self, operation_id: str) -> Plan | None:
        """Return the plan of a turn whose end was not heard of yet."""
        return self._state.plan_of(operation_id)

    def _planned(self, prospect: Prospect, kind: Kind, wish: Wish, *, in_one: bool) -> Plan:
        policy, objective_s = self._policy(prospect, wish)
        inputs = self._inputs(prospect, kind, policy, objective_s)
        if in_one:
            inputs = replace(inputs, room_tokens=room_tokens(prospect))
        if kind.is_measured or policy not in _MEASURING:
            return planned(inputs)
        _log.info("nothing is measured of this kind of engine yet: everything is loaded")
        return replace(planned(replace(inputs, policy=PlanPolicy.ALWAYS_LOAD)), policy=policy)

    def _policy(self, prospect: Prospect, wish: Wish) -> tuple[PlanPolicy, float]:
        session, limits = prospect.session, self._context.limits
        policy = wish.policy or session.plan_policy or limits.plan_policy
        asked_s = session.objective_s if wish.objective_s is None else wish.objective_s
        return policy, limits.plan_objective_s if asked_s is None else asked_s

    def _inputs(
        self, prospect: Prospect, kind: Kind, policy: PlanPolicy, objective_s: float
    ) -> PlanInputs:
        manifest, engine, target = prospect.manifest, prospect.engine, prospect.target_tokens
        assert manifest is not None
        resident, now = resident_tokens(prospect), self._context.now()
        key = prospect.session.tenant, prospect.session.session_id
        if resident >= target:
            resident = 0  # the question is what to do if the engine has lost it meanwhile
        passage = self._breaker(engine.engine_id).passage(now)
        others = self._context.streams.running(engine.url)
        return PlanInputs(
            target_tokens=target,
            chunk_tokens=manifest.chunk_tokens,
            spans=spans_of(manifest, target, resident),
            curves=kind.curves,
            policy=policy,
            objective_s=objective_s,
            load_queue=self._load_queue(prospect, kind, others),
            engine_queue=exactly(self._state.work.busy_s(engine.engine_id, now, key)),
            others=others,
            paused=frozenset({Tier.NVME} if passage is Passage.PAUSED else ()),
            trials=frozenset({Tier.NVME} if passage is Passage.TRIAL else ()),
            stops=stops_of(manifest, target),
        )

    def _load_queue(self, prospect: Prospect, kind: Kind, others: float) -> Estimate:
        session = prospect.session
        ahead = self._context.resume_queue.ahead(
            (session.tenant, session.session_id), prospect.engine.engine_id
        )
        return queue(((Tier.NVME, size) for size in ahead), kind.curves.loads, others)

    def _limit_s(self, plan: Plan) -> float:
        measured = plan.policy in _MEASURING and plan.recompute.ready.likely_s > 0.0
        limit_s = plan.recompute.ready.high_s * _LIMIT_FACTOR + _LIMIT_S
        return min(limit_s, self._context.limits.resume_deadline_s) if measured else 0.0

    def _breaker(self, engine_id: str) -> Breaker:
        return self._state.breakers.get((engine_id, Tier.NVME), Breaker())

    def _learn(self, known: Known, key: Key, underway: Underway | None, timing: TurnTiming) -> None:
        load = self.calibrator.measured(known, timing)
        observer = self._context.observer
        if load is not None:
            observer.restored(load.tier.value, load.stored_bytes / load.seconds)
            self.slow_paths.restored(known, key, load, timing)
            if load.tier is Tier.NVME:
                self._judge(known, underway, timing, load)
        if underway is None:
            return
        errors = errors_of(underway.plan, timing)
        observer.estimated(errors.load, errors.recompute, underway.plan.break_even_bytes_s)

    def _judge(
        self, known: Known, underway: Underway | None, timing: TurnTiming, load: LoadSample
    ) -> None:
        """Say whether a load from disk has paid: the breaker, and a trial, depend on it."""
        if not known.kind.is_measured:
            return
        engine_id, now = known.engine.engine_id, self._context.now()
        began_unix_s = underway.began_unix_s if underway else now - timing.ready_s
        would_s = computing_s(timing, known.kind.curves.prefill)
        before = self._breaker(engine_id)
        after = before.with_load(load.seconds, would_s, began_unix_s, now)
        self._state.breakers[engine_id, load.tier] = after
        if after.state is not before.state:
            words = "paused" if after.state is BreakerState.OPEN else "allowed"
            _log.warning("loads from %s into engine %s: %s", load.tier, engine_id, words)
        self._context.observer.loads_paused(self._state.paused_engines)
        if underway and underway.plan.is_trial and load.seconds < would_s:
            self.calibrator.forget_loads(known.kind, load.tier, now - load.seconds)
