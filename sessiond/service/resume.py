"""Resume: bring a snapshot back into an engine, and believe only what is proven."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.errors import DeadlineExceededError, IdentityPendingError
from sessiond.domain.outcomes import ResumeReport
from sessiond.domain.reasons import Cause, Reason
from sessiond.engine.client import TicketedRequest
from sessiond.engine.pairs import Pair, ResumeResult, resume_round
from sessiond.service.compatibility import Compatibility, adapter_for, check, surroundings
from sessiond.service.engines import ANYWHERE, Where
from sessiond.service.judge import conclude, movable_tokens
from sessiond.service.permits import Permit, Purpose
from sessiond.service.resume_rounds import Progress, after_round, begin

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo, ServedAdapter
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.engines import Sight
    from sessiond.service.snapshots import Readable, Snapshots


@dataclass(frozen=True)
class Survey:
    """What files tell of a session at one moment."""

    session: Session
    sight: Sight
    readable: Readable


@dataclass(frozen=True)
class Prospect:
    """What a resume of a session would find in one engine."""

    session: Session
    sight: Sight
    engine: EngineInfo
    readable: Readable
    compatibility: Compatibility | None  #: ``None`` without a readable snapshot
    adapter: ServedAdapter | None = None  #: of the engine; ``None``: its model itself

    @property
    def model(self) -> str:
        """The name that requests give."""
        return self.adapter.name if self.adapter else self.engine.model

    @property
    def adapter_digest(self) -> str:
        """The content of the adapter; empty without one, and while that is not proven."""
        return self.adapter.digest if self.adapter else ""

    @property
    def manifest(self) -> Manifest | None:
        """The snapshot, if it may be loaded here."""
        may = self.compatibility is not None and self.compatibility.loadable
        return self.readable.manifest if may else None

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why not all of the newest snapshot may be used."""
        found = self.compatibility
        if found is None:
            return (*self.readable.causes, *self.unkept)
        return (*self.readable.causes, *found.forbidding, *found.doubting)

    @property
    def hindrances(self) -> tuple[Cause, ...]:
        """Why nothing that the adapter computes is kept, or used again."""
        unproven = self.adapter.cause() if self.adapter else None
        return (unproven,) if unproven else ()

    @property
    def unkept(self) -> tuple[Cause, ...]:
        """Why nothing of the next turn will be kept."""
        return surroundings(self.engine, self.adapter)

    @property
    def target_tokens(self) -> int:
        """How many tokens the engine could be given, in whole chunks."""
        manifest = self.manifest
        if manifest is None:
            return 0
        movable = movable_tokens(
            len(manifest.tokens) - 1, manifest.chunk_tokens, self.engine.max_model_tokens
        )
        return manifest.restorable_up_to(movable)

    @property
    def target_chunks(self) -> int:
        """How many chunks these are, at most: with sliding windows, fewer are loaded."""
        chunks = self.manifest.chunks if self.manifest else ()
        target_tokens = self.target_tokens
        return sum(chunk.end_token <= target_tokens for chunk in chunks)


class Resumer:
    """Judges and performs resumes."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots

    async def look(
        self, session: Session, model: str | None = None, engine: EngineInfo | None = None
    ) -> Prospect:
        """Compare the newest readable snapshot with the engine that would serve the session.

        :param model: what the next turn names, empty for the engine's own model; by default what
            the session is for, or its snapshot of
        :param engine: look at this one instead
        :raises UnavailableError: no engine can.
        """
        survey = await self._context.blocking(self.survey, session)
        return await self.judge(survey, model, engine)

    def survey(self, session: Session) -> Survey:
        """Read everything that :meth:`judge` needs, once, in the caller's thread."""
        sight = self._context.engines.see(session)
        return Survey(session, sight, self._snapshots.newest_readable_now(session))

    async def judge(
        self,
        survey: Survey,
        model: str | None = None,
        engine: EngineInfo | None = None,
        where: Where = ANYWHERE,
    ) -> Prospect:
        """Do the same as :meth:`look` with what was read before, among the engines of *where*."""
        session, sight, manifest = survey.session, survey.sight, survey.readable.manifest
        wanted = session.model if model is None else model
        if engine is None:
            here = sight.presence.engine_id if sight.presence else ""
            known = manifest if wanted == session.model else None
            live = [one for one in sight.live if where.allows(one)]
            engine = await self._context.engines.choose(wanted, here, known, live, loading=manifest)
        if wanted == session.model and not engine.serves(wanted):
            wanted, model = "", None  # it may compute the same under another name
        adapter = adapter_for(engine, wanted, manifest if model is None else None)
        found = check(manifest, engine, adapter) if manifest else None
        return Prospect(session, sight, engine, survey.readable, found, adapter)

    async def perform(self, prospect: Prospect) -> ResumeReport:
        """Load what may be loaded.

        :raises IdentityPendingError: the engine does not know yet whether it may.
        :raises UnavailableError: the engine was lost, or is none of ours.
        """
        started_s = monotonic()
        compatibility = prospect.compatibility
        off = prospect.engine.tier_cause
        if compatibility is not None and off is not None and prospect.engine.is_pending:
            raise IdentityPendingError(causes=(off,))
        if prospect.manifest is None or not compatibility or not compatibility.prefetchable:
            return _report(prospect, begin(0, 1), monotonic() - started_s)
        progress = begin(prospect.target_tokens, prospect.manifest.chunk_tokens)
        session, queue = prospect.session, self._context.resume_queue
        key = session.tenant, session.session_id
        async with queue.place(key, prospect.engine, prospect.target_chunks) as queued_s:
            while not progress.done:
                result = await self._round(prospect, prospect.manifest, progress.asked_tokens)
                progress = after_round(progress, result, self._context.limits.resume_rounds)
        return _report(prospect, progress, monotonic() - started_s, queued_s)

    async def _round(
        self, prospect: Prospect, manifest: Manifest, asked_tokens: int
    ) -> ResumeResult:
        try:
            return await resume_round(
                self._context.client, self._pair(prospect, manifest, asked_tokens)
            )
        except DeadlineExceededError:
            # Giving up is safe: the requests are cancelled and the next turn computes.
            return ResumeResult(0, (Cause(Reason.DEADLINE),), moved=None)

    def _pair(self, prospect: Prospect, manifest: Manifest, asked_tokens: int) -> Pair:
        session, engine = prospect.session, prospect.engine
        purpose = Purpose(
            session.tenant,
            session.session_id,
            engine,
            manifest.generation,
            adapter_digest=prospect.adapter_digest,
        )
        moving, companion = self._context.signer.resume(purpose, self._context.now())

        def request(permit: Permit, tokens: int) -> TicketedRequest:
            prompt = manifest.tokens[:tokens]
            return TicketedRequest(
                engine.url, prospect.model, prompt, permit.cache_salt, permit.ticket
            )

        return Pair(
            moving=request(moving, asked_tokens + 1),
            companion=request(companion, 1),
            deadline_s=self._context.limits.resume_deadline_s,
        )


def _report(
    prospect: Prospect, progress: Progress, seconds: float, queued_s: float = 0.0
) -> ResumeReport:
    manifest = prospect.readable.manifest
    # Where the newest snapshot cannot be read, an older one must not pass for all of it.
    lost_tokens = _newer_tokens(prospect.session, manifest) if manifest else 0
    wanted_tokens = max(progress.target_tokens, lost_tokens)
    return ResumeReport(
        outcome=conclude(wanted_tokens, progress.restored_tokens, progress.disk_tokens),
        causes=(*prospect.causes, *progress.causes),
        engine_id=prospect.engine.engine_id,
        generation=manifest.generation if manifest else 0,
        tokens_total=len(manifest.tokens) if manifest else 0,
        tokens_restorable=manifest.restorable_tokens if manifest else 0,
        tokens_restored=progress.restored_tokens,
        disk_tokens=progress.disk_tokens,
        seconds=seconds,
        queued_s=queued_s,
    )


def _newer_tokens(session: Session, manifest: Manifest) -> int:
    """Return what the newest known snapshot had, if it is newer than *manifest*."""
    known = session.snapshot
    newer = known is not None and known.generation > manifest.generation
    return known.tokens_restorable if known and newer else 0
