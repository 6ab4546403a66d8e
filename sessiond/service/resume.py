"""What a resume of a session would find: an engine, and the newest snapshot that fits it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreError
from sessiond.service.compatibility import Compatibility, adapter_for, check, surroundings
from sessiond.service.engines import ANYWHERE, Where
from sessiond.service.judge import movable_tokens
from sessiond.service.lostkv import lost_kv
from sessiond.service.snapshots import Readable

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo, ServedAdapter
    from sessiond.domain.reasons import Cause
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.engines import Sight
    from sessiond.service.lostkv import LostKv
    from sessiond.service.snapshots import Snapshots
    from sessiond.store.sessionlook import SessionLook


@dataclass(frozen=True)
class Survey:
    """What files tell of a session at one moment."""

    session: Session
    sight: Sight
    readable: Readable
    lost: LostKv | None = None  #: that ended with its engine


@dataclass(frozen=True)
class Prospect:
    """What a resume of a session would find in one engine."""

    session: Session
    sight: Sight
    engine: EngineInfo
    readable: Readable
    compatibility: Compatibility | None  #: ``None`` without a readable snapshot
    adapter: ServedAdapter | None = None  #: of the engine; ``None``: its model itself
    lost: LostKv | None = None  #: that ended with its engine, after the newest snapshot

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
    def noted(self) -> tuple[Cause, ...]:
        """What differs between the newest snapshot and the engine, and does not matter."""
        return self.compatibility.noted if self.compatibility else ()

    @property
    def lost_causes(self) -> tuple[Cause, ...]:
        """Why that is not all of the session's context; told after what concerns the snapshot."""
        return (self.lost.cause,) if self.lost else ()

    @property
    def hindrances(self) -> tuple[Cause, ...]:
        """Why nothing that the adapter computes is kept, or used again."""
        unproven = self.adapter.cause() if self.adapter else None
        return (unproven,) if unproven else ()

    @property
    def unkept(self) -> tuple[Cause, ...]:
        """Why nothing of the next turn will be kept."""
        return surroundings(self.engine, self.adapter)

    @cached_property
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
    """Judges what a session could be given."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._snapshots = snapshots
        self._again = asyncio.Lock()

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

    async def look_again(self, prospect: Prospect) -> Prospect:
        """Return *prospect*, or a new one if snapshots were committed or removed since.

        Who comes first is answered first: resumes keep their order.

        :raises SessionNotFoundError: the session was deleted.
        :raises UnavailableError: no engine can.
        """
        async with self._again:
            if await self._context.blocking(self._is_current, prospect):
                return prospect
            key = prospect.session.tenant, prospect.session.session_id
            session = await self._context.blocking(self._context.registry.get_session, *key)
            return await self.look(session)

    def _is_current(self, prospect: Prospect) -> bool:
        session, manifest = prospect.session, prospect.readable.manifest
        stored = self._context.store.generations(session.tenant, session.session_id)
        return max(stored, default=0) == (manifest.generation if manifest else 0)

    async def lost(self, session: Session) -> LostKv | None:
        """Return what of a session ended with its engine; ``None``: nothing that is known of."""
        try:
            return (await self._context.blocking(self.survey, session)).lost
        except StoreError:
            return None

    def survey(self, session: Session, look: SessionLook | None = None) -> Survey:
        """Read everything that :meth:`judge` needs, once, in the caller's thread.

        :param look: what the session's folder held, looked at since *session* was read
        """
        look = look or self._context.store.look(session.tenant, session.session_id)
        sight = self._context.engines.see(session, look.heads)
        readable = self._snapshots.newest_readable_now(session, look)
        lost = lost_kv(session, look.heads, sight, readable)
        return Survey(session, sight, readable, lost)

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
        readable, found = survey.readable, None
        if manifest is not None:
            found = check(manifest, engine, adapter)
            readable, found = await self._fitting(session, engine, adapter, readable, found)
        return Prospect(session, sight, engine, readable, found, adapter, survey.lost)

    async def _fitting(
        self,
        session: Session,
        engine: EngineInfo,
        adapter: ServedAdapter | None,
        readable: Readable,
        found: Compatibility,
    ) -> tuple[Readable, Compatibility]:
        """Return an older snapshot where the newest does not fit and that does, as is kept for it.

        Why the newest does not is a cause then: it may have had more.
        """
        newest = readable.manifest
        if newest is None or not found.has_other_bytes:
            return readable, found

        def fits(manifest: Manifest) -> bool:
            return check(manifest, engine, adapter).loadable

        older = self._snapshots.older_that_fits
        manifest = await self._context.blocking(older, session, newest.generation, fits)
        if manifest is None:
            return readable, found
        causes = (*readable.causes, *found.forbidding)
        return Readable(manifest, causes), check(manifest, engine, adapter)
