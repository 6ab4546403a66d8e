"""What an engine has of sessions that no snapshot has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.drains import AtRisk, Saved
from sessiond.domain.errors import StoreError
from sessiond.domain.ids import SessionId, TenantId
from sessiond.service.coverage import cover

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.engines import Located
    from sessiond.service.snapshots import Snapshots
    from sessiond.service.watch import Key


class DrainScan:
    """Looks in the caller's thread. Pinned sessions count: an engine's end spares none."""

    def __init__(self, context: Context, snapshots: Snapshots, engine_id: str) -> None:
        self._context, self._snapshots = context, snapshots
        self._engine_id = engine_id

    def everywhere(self) -> list[AtRisk]:
        """Look at every session of the store.

        :raises StoreError: the store cannot be read.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        heads = self._context.store.drains.heads_of(self._engine_id)
        return self.among([(TenantId(head.tenant), SessionId(head.session)) for head in heads])

    def among(self, keys: Iterable[Key]) -> list[AtRisk]:
        """Look at these sessions.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        sessions = self._context.registry.sessions_by_key(list(keys))
        return [one for session in sessions if (one := self._look(session)) is not None]

    def stored(self, since: Mapping[Key, int]) -> list[Saved]:
        """Return which of these sessions have a newer snapshot than this; the same error."""
        sessions = self._context.registry.sessions_by_key(list(since))
        newest = filter(None, map(self._newest, sessions))
        return [
            Saved(one.tenant, one.session, one.generation, one.restorable_tokens)
            for one in newest
            if one.generation > since[one.tenant, one.session]
        ]

    def _newest(self, session: Session) -> Manifest | None:
        try:
            return self._snapshots.newest_manifest(session)
        except StoreError:
            return None  # then it is not known to be stored

    def _look(self, session: Session) -> AtRisk | None:
        try:
            return self._at_risk(session)
        except StoreError:
            # One that cannot be looked at costs the others nothing; its suspend will tell why.
            return AtRisk(session.tenant, session.session_id, 0, session.created_unix_s)

    def _at_risk(self, session: Session) -> AtRisk | None:
        located = self._context.engines.see(session).located
        if located is None or located.engine.engine_id != self._engine_id:
            return None  # it has had a turn elsewhere since
        head, newest = located.head, self._snapshots.newest_manifest(session)
        tokens = len(head.main.tokens) if head.main else 0
        busy = head.turns_in_flight > 0
        if not busy and not head.unkept:
            tokens = self._unsaved_tokens(located, newest)
            if not tokens:
                return None
        return AtRisk(
            session.tenant,
            session.session_id,
            tokens,
            head.updated_unix_s,
            busy,
            newest.generation if newest else 0,
        )

    def _unsaved_tokens(self, located: Located, newest: Manifest | None) -> int:
        covered = cover(self._context.store, located.engine, located.head, newest)
        return max(0, covered.tokens - covered.kept_tokens) if covered else 0
