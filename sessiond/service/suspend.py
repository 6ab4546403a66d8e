"""Suspend: hand a session's KV to the store, round by round, and prove that it is durable."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import (
    DeadlineExceededError,
    EngineUnreachableError,
    IdentityPendingError,
    NothingToSuspendError,
    UnavailableError,
)
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import OnEvicted
from sessiond.engine.client import TicketedRequest
from sessiond.engine.pairs import CommitResult, Pair, suspend_round
from sessiond.service.coverage import cover
from sessiond.service.judge import summarize
from sessiond.service.permits import Permit, Purpose
from sessiond.service.plans import Wish
from sessiond.service.settling import Settler
from sessiond.service.suspend_plans import (
    Plan,
    Source,
    begin,
    is_evicted,
    moved_on,
    report,
    report_newest,
    skipped,
    unkept_cause,
)
from sessiond.service.suspend_rounds import (
    Progress,
    RoundEnd,
    after_round,
    error_of,
    tier_error,
    unanswered,
)

if TYPE_CHECKING:
    from sessiond.domain.outcomes import SuspendReport
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.coverage import Coverage
    from sessiond.service.engines import Located
    from sessiond.service.restoring import Restorer
    from sessiond.service.resume import Resumer
    from sessiond.service.snapshots import Snapshots

#: What was asked to be stored has to be there, whatever that takes.
_ALL = Wish(PlanPolicy.ALWAYS_LOAD)
#: After these the engine may still be about to commit.
_ANSWER_LOST = (EngineUnreachableError, DeadlineExceededError)


class Suspender:
    """Plans and performs suspends."""

    def __init__(
        self, context: Context, snapshots: Snapshots, resumer: Resumer, restorer: Restorer
    ) -> None:
        self._context = context
        self._snapshots = snapshots
        self._resumer = resumer
        self._restorer = restorer
        self._settler = Settler(context)

    async def plan(
        self, session: Session, on_evicted: OnEvicted | None = None, *, asks: bool = True
    ) -> Plan:
        """Look at what there is to do; changes nothing.

        :param on_evicted: what to do about evicted KV; by default as the session says
        :param asks: whether engines are asked first to write down what has just ended
        :raises TurnInFlightError: a turn is running, and still is after half a second.
        :raises NothingToSuspendError: there is no whole chunk of KV.
        :raises NotTextError: the newest turn is more than text.
        :raises AdapterUnprovenError: it is not proven which adapter computed it.
        :raises UnavailableError: no engine runs, and there is no snapshot either, or the engine
            keeps nothing, or does not tell of what it has.
        """
        policy = on_evicted or session.on_evicted or self._context.limits.on_evicted
        settled = await self._settler.look(session, asks=asks)
        located, doubts = settled.located, (settled.doubt,) if settled.doubt else ()
        unkept = unkept_cause(located) if located else None
        if unkept is not None:
            raise error_of((unkept,))
        newest = (await self._snapshots.newest_readable(session)).manifest
        covered = await self._covered(located, newest) if located else None
        if located is None or covered is None:
            plan = Plan(session, newest, None, on_evicted=policy, doubts=doubts)
            return await self._without_head(plan)
        if covered.is_side_call:
            aside = (Cause(Reason.SIDE_CALL),)
            return Plan(session, newest, None, on_evicted=policy, causes=aside, doubts=doubts)
        if covered.tokens == 0:
            raise error_of(doubts) if doubts else NothingToSuspendError
        off = located.engine.tier_cause
        if off is not None and covered.kept_tokens < covered.tokens:
            raise tier_error(off)  # it may be asleep, too, and answer nothing
        source = Source(located, covered.branch, covered.tokens)
        if source.hindrance is not None:
            raise error_of((source.hindrance,))
        return Plan(session, newest, source, covered.kept_tokens, policy, doubts=doubts)

    async def perform(self, plan: Plan) -> SuspendReport:
        """Do what was planned; what a round has stored stays stored whatever happens later.

        :raises SuspendSkippedError: KV was evicted, and the plan says to store nothing then.
        :raises SessiondError: nothing could be stored, or the engine was lost.
        """
        started_s = monotonic()
        if plan.source is None or plan.kept_tokens >= plan.source.tokens:
            return report_newest(plan, plan.causes)
        progress = begin(plan)
        source = plan.source
        while not progress.done:
            if progress.head_is_stale:
                source, progress = await self._refreshed(plan, source, progress)
            if progress.lacks_what_is_stored:
                progress = await self._brought_back(plan, source, progress)
            end = await self._round(plan, source, progress)
            progress = after_round(progress, end, self._context.limits.suspend_rounds)
        if progress.best is None and is_evicted(progress.causes):
            if plan.on_evicted is OnEvicted.SKIP:
                raise skipped(source, progress)
            if progress.kept_tokens:
                plan = replace(plan, doubts=progress.doubts)
                return report_newest(plan, progress.causes, progress.evicted_tokens)
        return report(source, progress, monotonic() - started_s)

    async def _covered(self, located: Located, newest: Manifest | None) -> Coverage | None:
        store = self._context.store
        return await self._context.blocking(cover, store, located.engine, located.head, newest)

    async def _without_head(self, plan: Plan) -> Plan:
        if plan.newest is None:
            engine = await self._context.engines.choose(plan.session.model)  # names what is missing
            if engine.tier_cause is not None:
                raise tier_error(engine.tier_cause)
            lost = await self._resumer.lost(plan.session)
            nothing = NothingToSuspendError(causes=(lost.cause,) if lost else ())
            raise error_of(plan.doubts) if plan.doubts else nothing
        if await self._context.engines.is_pending(plan.session.model):
            # It may have a newer head that it cannot tell of yet.
            raise IdentityPendingError(causes=(Cause(Reason.IDENTITY_PENDING),))
        return plan

    async def _refreshed(
        self, plan: Plan, source: Source, progress: Progress
    ) -> tuple[Source, Progress]:
        """Follow a head that moved on since the plan was made."""
        fresh = await self.plan(plan.session, plan.on_evicted)
        if fresh.source is None:
            return source, progress
        return fresh.source, moved_on(progress, fresh)

    async def _brought_back(self, plan: Plan, source: Source, progress: Progress) -> Progress:
        """Load what the newest snapshot has, so that only what no snapshot has is computed."""
        prospect = await self._resumer.look(plan.session, engine=source.located.engine)
        with contextlib.suppress(UnavailableError):  # then that is computed as well
            await self._restorer.perform(prospect, _ALL)
        return replace(progress, available_tokens=progress.kept_tokens)

    async def _round(self, plan: Plan, source: Source, progress: Progress) -> RoundEnd:
        session = plan.session
        generation = await self._snapshots.next_generation(session)
        pair = self._pair(session, source, progress, generation)
        started_s = monotonic()
        manifest: Manifest | None = None
        try:
            result = await suspend_round(self._context.client, pair)
        except UnavailableError as error:
            wait_s = self._settle_s if isinstance(error, _ANSWER_LOST) else 0.0
            manifest = await self._manifest_after(wait_s, session, generation)
            if manifest is None and not progress.outlives(error):
                raise
            end = RoundEnd(None, () if manifest else (Cause(Reason.DEADLINE),))
        else:
            end = await self._read_end(session, source, generation, result)
            if end.summary is None and end.is_unknown:
                manifest = await self._manifest_after(self._settle_s, session, generation)
        if manifest:
            seconds = monotonic() - started_s
            summary = summarize(manifest, plan.newest, source.model, seconds)
            end = unanswered(progress, summary, end.causes)
        if end.summary:
            await self._snapshots.record(session, end.summary)
        return end

    @property
    def _settle_s(self) -> float:
        return self._context.limits.commit_settle_s

    async def _read_end(
        self, session: Session, source: Source, generation: int, result: CommitResult
    ) -> RoundEnd:
        if not result.committed:
            return RoundEnd(None, result.causes, result.available_tokens)
        # Not the answer but the manifest is the proof, so it is read back from the store.
        manifest = await self._context.blocking(
            self._context.store.read_manifest,
            session.tenant,
            session.session_id,
            generation,
        )
        answer = result.answer
        told = summarize(manifest, None, source.model, answer.seconds("seconds"))
        new_bytes, shared_bytes = answer.number("new_bytes"), answer.number("shared_bytes")
        return RoundEnd(
            replace(told, new_bytes=new_bytes, shared_bytes=shared_bytes),
            result.causes,
            recomputed_tokens=answer.number("recomputed_tokens"),
        )

    async def _manifest_after(
        self, wait_s: float, session: Session, generation: int
    ) -> Manifest | None:
        """Return what was committed although no answer said so: the manifest on disk decides."""
        deadline_s = monotonic() + wait_s
        while True:
            manifest = await self._snapshots.read(session, generation)
            if manifest or monotonic() >= deadline_s:
                return manifest
            await asyncio.sleep(self._context.limits.poll_s)

    def _pair(self, session: Session, source: Source, progress: Progress, generation: int) -> Pair:
        engine, branch = source.located.engine, source.branch
        purpose = Purpose(
            session.tenant,
            session.session_id,
            engine,
            generation,
            adapter_digest=branch.adapter_digest,
            recomputes=progress.recomputes,
            session_created_unix_us=session.created_unix_us,
        )
        moving, companion = self._context.signer.suspend(purpose, branch, self._context.now())

        def request(permit: Permit, tokens: int) -> TicketedRequest:
            prompt = branch.tokens[:tokens]
            return TicketedRequest(
                engine.url, source.model, prompt, permit.cache_salt, permit.ticket
            )

        return Pair(
            moving=request(moving, progress.asked_tokens + 1),
            companion=request(companion, 1),
            deadline_s=self._context.limits.suspend_deadline_s,
        )
