"""Brings a snapshot's KV into an engine, as far as the plan says, and believes what is proven."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import DeadlineExceededError, IdentityPendingError
from sessiond.domain.outcomes import ResumeReport
from sessiond.domain.reasons import Cause, Reason
from sessiond.engine.client import TicketedRequest
from sessiond.engine.pairs import Pair, ResumeResult, resume_round
from sessiond.service.judge import conclude
from sessiond.service.permits import Permit, Purpose
from sessiond.service.planinputs import stored_bytes
from sessiond.service.plans import Decision, Planner, Wish
from sessiond.service.resume_rounds import Progress, after_round, begin

if TYPE_CHECKING:
    from sessiond.domain.plans import Plan
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.domain.timing import TurnTiming
    from sessiond.service.context import Context
    from sessiond.service.resume import Prospect


class Restorer:
    """Performs resumes."""

    def __init__(self, context: Context, planner: Planner) -> None:
        self._context = context
        self._planner = planner

    async def perform(self, prospect: Prospect, wish: Wish | None = None) -> ResumeReport:
        """Load what may be loaded, and pays.

        It is planned twice: at once, and if loading pays, again when its turn in the line has
        come. Only then a load is settled, because what is in the line changes meanwhile.

        :raises IdentityPendingError: the engine does not know yet whether it may.
        :raises UnavailableError: the engine was lost, or is none of ours.
        """
        run = _Run(prospect)
        compatibility = prospect.compatibility
        off = prospect.engine.tier_cause
        if compatibility is not None and off is not None and prospect.engine.is_pending:
            raise IdentityPendingError(causes=(off,))
        manifest = prospect.manifest
        if manifest is None or not compatibility or not compatibility.prefetchable:
            return run.report()
        first = await self._decided(run, wish)
        if not first.load_tokens:
            return run.report()
        session, queue = prospect.session, self._context.resume_queue
        key, size = (session.tenant, session.session_id), _size(manifest, first)
        async with queue.place(key, prospect.engine, prospect.target_chunks, size) as queued_s:
            run.queued_s = queued_s
            decision = await self._decided(run, wish) if first.may_load else first
            progress = begin(decision.load_tokens, manifest.chunk_tokens)
            while not progress.done:
                result = await self._round(run, decision, progress.asked_tokens)
                progress = after_round(progress, result, self._context.limits.resume_rounds)
            run.progress = progress
        return run.report()

    async def _decided(self, run: _Run, wish: Wish | None) -> Decision:
        run.plan = await self._planner.plan(run.prospect, wish)
        return self._planner.decide(run.prospect, run.plan)

    async def _round(self, run: _Run, decision: Decision, asked_tokens: int) -> ResumeResult:
        engine_id, session = run.prospect.engine.engine_id, run.prospect.session
        pair, operation_id = self._pair(run.prospect, decision, asked_tokens)
        self._planner.begin(operation_id, run.prospect, decision)
        try:
            result = await resume_round(self._context.client, pair)
        except DeadlineExceededError:
            # Giving up is safe: the requests are cancelled and the next turn computes.
            return ResumeResult(0, (Cause(Reason.DEADLINE),), moved=None)
        run.timing = result.moved.timing if result.moved else run.timing
        key, timing = (session.tenant, session.session_id), run.timing if result.moved else None
        self._planner.ended(engine_id, key, operation_id, timing)
        return result

    def _pair(self, prospect: Prospect, decision: Decision, asked_tokens: int) -> tuple[Pair, str]:
        session, engine, manifest = prospect.session, prospect.engine, prospect.manifest
        assert manifest is not None
        purpose = Purpose(
            session.tenant,
            session.session_id,
            engine,
            manifest.generation if decision.may_load else 0,
            adapter_digest=prospect.adapter_digest,
            load_limit_s=decision.limit_s,
            session_created_unix_us=session.created_unix_us,
        )
        moving, companion = self._context.signer.resume(purpose, self._context.now())

        def request(permit: Permit, tokens: int) -> TicketedRequest:
            prompt = manifest.tokens[:tokens]
            return TicketedRequest(
                engine.url, prospect.model, prompt, permit.cache_salt, permit.ticket
            )

        pair = Pair(
            moving=request(moving, asked_tokens + 1),
            companion=request(companion, 1),
            deadline_s=self._context.limits.resume_deadline_s,
        )
        return pair, moving.operation_id


class _Run:
    """One resume, as far as it has come."""

    def __init__(self, prospect: Prospect) -> None:
        self.prospect = prospect
        self.progress: Progress = begin(0, 1)
        self.plan: Plan | None = None
        self.timing: TurnTiming | None = None  #: of its last round that moved something
        self.queued_s = 0.0
        self._began_s = monotonic()

    def report(self) -> ResumeReport:
        prospect, progress = self.prospect, self.progress
        manifest = prospect.readable.manifest
        # Where the newest snapshot cannot be read, an older one must not pass for all of it. Nor
        # does a snapshot where an engine has ended with more.
        newer_tokens = _newer_tokens(prospect.session, manifest) if manifest else 0
        lost_tokens = prospect.lost.tokens if prospect.lost else 0
        wanted_tokens = max(prospect.target_tokens + lost_tokens, newer_tokens)
        lacks = progress.restored_tokens < prospect.target_tokens
        planned = self.plan.causes if self.plan and lacks else ()
        return ResumeReport(
            outcome=conclude(wanted_tokens, progress.restored_tokens, progress.disk_tokens),
            causes=(*planned, *prospect.causes, *progress.causes, *prospect.lost_causes),
            engine_id=prospect.engine.engine_id,
            generation=manifest.generation if manifest else 0,
            tokens_total=len(manifest.tokens) if manifest else 0,
            tokens_restorable=manifest.restorable_tokens if manifest else 0,
            tokens_restored=progress.restored_tokens,
            disk_tokens=progress.disk_tokens,
            seconds=monotonic() - self._began_s,
            queued_s=self.queued_s,
            plan=self.plan,
            timing=self.timing,
            lossy=manifest.loss if manifest else None,
            noted=prospect.noted,
        )


def _size(manifest: Manifest, decision: Decision) -> int:
    """Return the bytes that a resume is going to read, at most."""
    return stored_bytes(manifest, 0, decision.load_tokens) if decision.may_load else 0


def _newer_tokens(session: Session, manifest: Manifest) -> int:
    """Return what the newest known snapshot had, if it is newer than *manifest*."""
    known = session.snapshot
    newer = known is not None and known.generation > manifest.generation
    return known.tokens_restorable if known and newer else 0
