"""What an engine has of sessions that no snapshot has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.drains import AtRisk, Saved
from sessiond.domain.errors import StoreError
from sessiond.domain.ids import SessionId, TenantId
from sessiond.domain.reasons import Cause, Reason
from sessiond.service.coverage import cover
from sessiond.service.engines import newest_head
from sessiond.service.headchoice import is_gone, is_needed
from sessiond.service.judge import storable_tokens

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from sessiond.domain.heads import Head
    from sessiond.domain.session import Session
    from sessiond.domain.snapshot import Manifest
    from sessiond.service.context import Context
    from sessiond.service.coverage import Coverage
    from sessiond.service.engines import Located
    from sessiond.service.snapshots import Snapshots
    from sessiond.service.watch import Key


@dataclass(frozen=True)
class Found:
    """What became of sessions; those that went on elsewhere, or were deleted, are in none."""

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
            heads = self._context.store.read_heads(*key)
            sight = self._context.engines.see(session, heads)
            ours = [head for head in heads if head.engine_id == self.engine_id]
            own, located = newest_head(session, ours, sight.live), sight.located
            if own is None or located is None:
                return None
            newest = self._snapshots.newest_manifest(session)
            here = located.engine.engine_id == self.engine_id
            if is_gone(own.head) and (
                here or own.head.updated_unix_s > located.head.updated_unix_s
            ):
                return _Seen(key, None, _saved(newest), is_gone=True)
            if not here:
                left = self._left_behind(own, located.head, newest)
                return _Seen(key, left, _saved(newest)) if left else None
            return _Seen(key, self._at_risk(located, newest), _saved(newest))
        except StoreError:
            # One that cannot be looked at costs the others nothing; its suspend will tell why.
            return _Seen(key, AtRisk(*key, 0, session.created_unix_s))

    def _left_behind(self, own: Located, there: Head, newest: Manifest | None) -> AtRisk | None:
        """Return what would be lost although another engine has the session's newest turn."""
        if not own.head.turns_in_flight and not is_needed(own.head, there):
            return None  # it went on elsewhere
        found = self._at_risk(own, newest)
        if found is None or found.busy or found.cause or there.unkept:
            return found
        if there.turns_in_flight:
            return replace(found, busy=True)  # its end decides
        return replace(found, cause=own.engine.tier_cause or Cause(Reason.WENT_ELSEWHERE))

    def _at_risk(self, located: Located, newest: Manifest | None) -> AtRisk | None:
        head, kept, cause = located.head, 0, None
        tokens = len(head.main.tokens) if head.main else 0
        busy = head.turns_in_flight > 0
        if not busy and not head.unkept:
            covered = cover(self._context.store, located.engine, head, newest)
            kept = covered.kept_tokens if covered else 0
            tokens = max(0, covered.tokens - kept) if covered else 0
            if covered and newest and _is_passed_over(covered, newest):
                tokens = storable_tokens(covered.branch, located.engine)
                cause = Cause(Reason.SIDE_CALL)
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
            cause,
        )


def _is_passed_over(covered: Coverage, newest: Manifest) -> bool:
    """Whether a branch had a turn since the snapshot, of which nobody knows what it is."""
    return covered.is_side_call and covered.branch.updated_unix_s > newest.created_unix_s


def _saved(manifest: Manifest | None) -> Saved | None:
    if manifest is None:
        return None
    tokens = manifest.restorable_tokens
    return Saved(manifest.tenant, manifest.session, manifest.generation, tokens)
