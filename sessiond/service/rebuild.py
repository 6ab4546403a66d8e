"""The registry from the files alone: what it forgot comes back, what was deleted does not.

Each session is one transaction, so that a rebuild that was cut off is simply begun again, and
one beside a running daemon disturbs it no more than any other call does.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import SessionExistsError, SnapshotNotFoundError, StoreError
from sessiond.registry import Restored, Witness
from sessiond.service.judge import summarize
from sessiond.service.records import session_of
from sessiond.store import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.domain.errors import SessiondError
    from sessiond.domain.snapshot import Manifest, SnapshotSummary
    from sessiond.registry import Registry
    from sessiond.store.catalogue import FoundSession
    from sessiond.store.sessions import SessionRecord
    from sessiond.store.store import Store


@dataclass(frozen=True)
class Unreadable:
    """One file that could not be used."""

    where: str  #: below the store root
    code: str
    why: str
    tenant: str = ""  #: empty where nobody can tell
    session: str = ""


@dataclass
class RebuildReport:
    """What a rebuild did, or would do."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0  #: rows whose sessions the files call deleted
    left_out: int = 0  #: deleted sessions that stayed away
    snapshots: int = 0  #: of the sessions that live
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every file could be used."""
        return not self.unreadable


class Rebuilder:
    """Brings a registry into line with a store."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        dry_run: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._registry = store, registry
        self._dry_run, self._now = dry_run, now
        self._outcomes: Counter[Restored] = Counter()
        self._report = RebuildReport()

    def run(self) -> RebuildReport:
        """Bring every session back.

        :raises StoreError: the store's folders cannot be read.
        :raises RegistryUnavailableError: the registry does not answer; run it again.
        """
        for found in self._store.scan_sessions():
            self._session(found)
        counts = self._outcomes
        self._report.created = counts[Restored.CREATED]
        self._report.changed = counts[Restored.CHANGED]
        self._report.unchanged = counts[Restored.UNCHANGED]
        self._report.deleted = counts[Restored.DELETED]
        self._report.left_out = counts[Restored.KEPT_DELETED] + counts[Restored.NOTHING]
        return self._report

    def _session(self, found: FoundSession) -> None:
        record = found.record
        if found.error:
            # It may be a tombstone: nothing of the session comes back.
            self._unreadable("/".join((*found.folder, layout.SESSION_FILE)), found.error)
        elif record is not None and record.deleted_unix_s is not None:
            outcome = self._registry.restore_deleted(
                record.tenant,
                record.session,
                record.deleted_unix_s,
                self._now(),
                dry_run=self._dry_run,
            )
            self._outcomes[outcome] += 1
        elif record is not None:
            self._outcomes[self._restore(found, record)] += 1

    def _restore(self, found: FoundSession, record: SessionRecord) -> Restored:
        # The registry first: what it knows now was committed before, so that what the files
        # lack then is gone for certain.
        known = self._registry.list_snapshots(record.tenant, record.session)
        generations = self._store.generations(record.tenant, record.session)
        summaries = self._summaries(found, record, generations)
        witness = Witness(
            session=session_of(self._dated(record) if found.is_guess else record),
            used_unix_s=self._used(record, summaries),
            snapshots=tuple(summaries),
            vanished=frozenset({one.generation for one in known}.difference(generations)),
            is_guess=found.is_guess,
        )
        self._report.snapshots += len(summaries)
        try:
            return self._registry.restore_session(witness, self._now(), dry_run=self._dry_run)
        except SessionExistsError:  # created by the daemon in this moment
            return self._registry.restore_session(witness, self._now(), dry_run=self._dry_run)

    def _summaries(
        self, found: FoundSession, record: SessionRecord, generations: list[int]
    ) -> list[SnapshotSummary]:
        summaries = []
        earlier: Manifest | None = None
        for generation in generations:
            try:
                manifest = self._store.read_manifest(record.tenant, record.session, generation)
            except SnapshotNotFoundError:
                continue  # deleted meanwhile
            except StoreError as error:
                where = "/".join((*found.folder, layout.manifest_file(generation)))
                self._unreadable(where, error, record)
                continue
            parent = self._parent(manifest, earlier)
            summaries.append(summarize(manifest, parent, record.model, seconds=0.0))
            earlier = manifest
        return summaries

    def _parent(self, manifest: Manifest, earlier: Manifest | None) -> Manifest | None:
        wanted = manifest.parent_generation
        if not wanted or (earlier and earlier.generation == wanted):
            return earlier if wanted else None
        try:
            return self._store.read_manifest(manifest.tenant, manifest.session, wanted)
        except (StoreError, SnapshotNotFoundError):
            return None

    def _dated(self, record: SessionRecord) -> SessionRecord:
        """Return a guessed record with when its session was created, if an engine's head tells."""
        heads = self._store.read_heads(record.tenant, record.session)
        told = {head.session_created_unix_us / 1_000_000 for head in heads} - {0.0}
        # What is told of a deleted session of the same id is older than what is told of this one.
        before = (unix_s for unix_s in told if unix_s <= record.created_unix_s)
        return replace(record, created_unix_s=max(before, default=record.created_unix_s))

    def _used(self, record: SessionRecord, summaries: list[SnapshotSummary]) -> float:
        """Return the newest time that any of the session's files tells."""
        times = [record.updated_unix_s, *(summary.created_unix_s for summary in summaries)]
        heads = self._store.read_heads(record.tenant, record.session)
        return max(times + [head.updated_unix_s for head in heads])

    def _unreadable(
        self, where: str, error: SessiondError, record: SessionRecord | None = None
    ) -> None:
        tenant, session = (record.tenant, record.session) if record else ("", "")
        self._report.unreadable.append(
            Unreadable(where, error.code, error.message, tenant, session)
        )


def rebuild_registry(store: Store, registry: Registry, *, dry_run: bool = False) -> RebuildReport:
    """Bring *registry* into line with *store*; with *dry_run*, only say what would be done.

    Idempotent: after a crash at any moment, run it again.

    :raises StoreError: the store's folders cannot be read.
    :raises RegistryUnavailableError: the registry does not answer.
    """
    return Rebuilder(store, registry, dry_run=dry_run).run()
