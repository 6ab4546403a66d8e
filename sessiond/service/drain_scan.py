"""What an engine has of sessions that no snapshot has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.drains import AtRisk, Saved
from sessiond.domain.errors import StoreError
from sessiond.domain.ids import SessionId, TenantId
from sessiond.service.coverage import cover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from sessiond.domain.heads import Head
    from sessiond.domain.reasons import Cause
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.engines import Located
    from sessiond.service.snapshots import Snapshots
    from sessiond.service.watch import Key


@dataclass(frozen=True)
class Found:
    """What became of sessions; those that went elsewhere, or were deleted, are in none."""

    at_risk: tuple[AtRisk, ...]
    stored: Mapping[Key, Saved]  #: their newest snapshot has all that there is
    gone: Mapping[Key, Saved | None]  #: the engine has no KV of them; their newest snapshot


@dataclass(frozen=True)
class Checks:
    """What a drain asks again and again."""

    doubt: Callable[[], Awaitable[Cause | None]]  #: why the engine may have more than it tells
    sent: Callable[[], int]  #: how many turns were on their way to it, ever
    is_wanted: Callable[[], Awaitable[bool]]  #: whether it is still to be drained


@dataclass(frozen=True)
class _Seen:
    """One session of the engine."""

    key: Key
    at_risk: AtRisk | None = None
    snapshot: Saved | None = None
    is_gone: bool = False


class DrainScan:
    """Looks in the caller's thread. Pinned sessions count: an engine's end spares none."""

    def __init__(self, context: Context, snapshots: Snapshots, engine_id: str) -> None:
        self._context, self._snapshots = context, snapshots
        self.engine_id = engine_id

    def everywhere(self) -> Found:
        """Look at every session of the store.

        :raises StoreError: the store cannot be read.
        :raises RegistryUnavailableError: the registry does not answer.
        """
        heads = self._context.store.drains.heads_of(self.engine_id)
        return self.among([(TenantId(head.tenant), SessionId(head.session)) for head in heads])

    def among(self, keys: Iterable[Key]) -> Found:
        """Look at these sessions.

        :raises RegistryUnavailableError: the registry does not answer.
        """
        sessions = self._context.registry.sessions_by_key(list(keys))
        seen = [one for session in sessions if (one := self._look(session)) is not None]
        stored = {one.key: one.snapshot for one in seen if not (one.at_risk or one.is_gone)}
        return Found(
            tuple(one.at_risk for one in seen if one.at_risk),
            {key: snapshot for key, snapshot in stored.items() if snapshot},
            {one.key: one.snapshot for one in seen if one.is_gone},
        )

    def stored(self, since: Mapping[Key, int]) -> list[Saved]:
        """Return which of these sessions have a newer snapshot than this; the same error."""
        sessions = self._context.registry.sessions_by_key(list(since))
        newest = filter(None, map(_saved, map(self._newest, sessions)))
        return [one for one in newest if one.generation > since[one.key]]

    def _newest(self, session: Session) -> Manifest | None:
        try:
            return self._snapshots.newest_manifest(session)
        except StoreError:
            return None  # then it is not known to be stored

    def _look(self, session: Session) -> _Seen | None:
        key = session.tenant, session.session_id
        try:
            located = self._context.engines.see(session).located
            if located is None or located.engine.engine_id != self.engine_id:
                return None  # it has had a turn elsewhere since
            newest = self._snapshots.newest_manifest(session)
            if _is_gone(located.head):
                return _Seen(key, None, _saved(newest), is_gone=True)
            return _Seen(key, self._at_risk(located, newest), _saved(newest))
        except StoreError:
            # One that cannot be looked at costs the others nothing; its suspend will tell why.
            return _Seen(key, AtRisk(*key, 0, session.created_unix_s))

    def _at_risk(self, located: Located, newest: Manifest | None) -> AtRisk | None:
        head, kept = located.head, 0
        tokens = len(head.main.tokens) if head.main else 0
        busy = head.turns_in_flight > 0
        if not busy and not head.unkept:
            covered = cover(self._context.store, located.engine, head, newest)
            kept = covered.kept_tokens if covered else 0
            tokens = max(0, covered.tokens - kept) if covered else 0
            if not tokens:
                return None
        return AtRisk(
            TenantId(head.tenant),
            SessionId(head.session),
            tokens,
            head.updated_unix_s,
            busy,
            newest.generation if newest else 0,
            kept,
        )


def _is_gone(head: Head) -> bool:
    return not (head.branches or head.turns_in_flight or head.unkept)


def _saved(manifest: Manifest | None) -> Saved | None:
    if manifest is None:
        return None
    tokens = manifest.restorable_tokens
    return Saved(manifest.tenant, manifest.session, manifest.generation, tokens)
