"""The look ahead: would a session resume on an engine, with how much of it, and why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.service.resume import Resumer
from sessiond.service.turns import TurnPlan, causes_of, plan_of

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.fingerprint import Mismatch
    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.plans import Plan
    from sessiond.domain.reasons import Cause
    from sessiond.service.context import Context
    from sessiond.service.plans import Planner
    from sessiond.service.snapshots import Snapshots


@dataclass(frozen=True)
class Probe:
    """What a resume would find, without doing it."""

    engine: EngineInfo
    model: str  #: that requests of the session name there
    would_resume: bool  #: whether a resume would leave the session's KV in the engine
    plan: TurnPlan  #: of the next turn
    causes: tuple[Cause, ...]
    mismatches: tuple[Mismatch, ...]
    generation: int  #: the snapshot that fits, else the newest that can be read; 0: none
    tokens_total: int
    tokens_restorable: int
    tokens_loadable: int  #: on this engine
    resumes_ahead: int  #: that run there, or wait for it, in this daemon
    decided: Plan | None = None  #: load or recompute, if it was now; ``None``: nothing to decide


class Prober:
    """Looks, and changes nothing: no event, no operation, no record of a use."""

    def __init__(self, context: Context, snapshots: Snapshots, planner: Planner) -> None:
        self._context = context
        self._planner = planner
        self._resumer = Resumer(context, snapshots)

    async def probe(self, tenant: TenantId, session_id: SessionId, engine_id: str = "") -> Probe:
        """Look at what a resume would find on an engine.

        :param engine_id: empty: the engine that would serve the session
        :raises SessionNotFoundError: there is no such session.
        :raises EngineNotFoundError: there is no live engine of that id.
        :raises UnavailableError: no engine can serve it.
        """
        engine = await self._context.engines.get(engine_id) if engine_id else None
        get = self._context.registry.get_session  # as it is: what is not recorded yet stays so
        session = await self._context.blocking(get, tenant, session_id)
        prospect = await self._resumer.look(session, engine=engine)
        manifest, found = prospect.readable.manifest, prospect.compatibility
        decision = self._planner.decide(prospect, await self._planner.plan(prospect))
        plan = plan_of(prospect, decision)
        prefetches = found is not None and found.prefetchable and decision.load_tokens > 0
        postponed = found is not None and prospect.engine.is_pending
        return Probe(
            engine=prospect.engine,
            model=prospect.model,
            would_resume=(plan is TurnPlan.WARM or prefetches) and not postponed,
            plan=plan,
            causes=causes_of(prospect, decision),
            mismatches=found.mismatches if found else (),
            generation=manifest.generation if manifest else 0,
            tokens_total=len(manifest.tokens) if manifest else 0,
            tokens_restorable=manifest.restorable_tokens if manifest else 0,
            tokens_loadable=prospect.target_tokens,
            resumes_ahead=self._context.resume_queue.length(prospect.engine.engine_id),
            decided=decision.plan,
        )
