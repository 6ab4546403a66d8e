"""What a soak's store and temporary folder hold that nobody needs, after all servers ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from sessiond.app.bench.soak.ledger import Promise
from sessiond.connector import leftovers, scratch
from sessiond.domain.errors import StoreError
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.keys import KeyRing
from sessiond.store.findings import VerifyOptions
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

#: PyTorch keeps compiled code, which is wanted again.
_KEPT: Final = "torchinductor_"


def reclaim(store: Store, temporary: Path) -> None:
    """Remove what the next engine's start removes: the last one has no successor."""
    for engine in store.dead_engines():
        leftovers.reclaim(engine.shared_files)
    store.remove_dead_engines()
    scratch.reclaim(temporary)


def of_dead_engines(store: Store, temporary: Path) -> Iterator[str]:
    """Yield, in words, what the start of the engine that lives should have removed."""
    for engine in store.dead_engines():
        yield f"file of engine {engine.engine_id}, which was killed before the last start"
    folders = in_folder(temporary)
    if len(folders) > 1:  # the engine's own
        yield f"{len(folders)} temporary folders, while one engine lives: {', '.join(folders)}"


def open_store(root: Path, key_file: Path) -> Store:
    """Open the soak's store, as any other process would."""
    return Store.open(root, KeyRing.from_server_key(load_server_key(key_file, create=False)))


def in_store(store: Store, sessions: Collection[str]) -> Iterator[str]:
    """Yield, in words, what no manifest and no session needs; *sessions* are those that exist."""
    store.collect()
    for segment_id in sorted(store.upkeep.usage().unreferenced):
        yield f"segment {segment_id} is referenced by no manifest"
    for name in ("tmp", "quarantine"):
        yield from (f"file {path.name} in {name}" for path in _files(store.root / name))
    for engine in (*store.dead_engines(), *store.live_engines()):
        yield f"file of engine {engine.engine_id}, which has ended"
    for record in store.list_sessions():
        if not record.is_tombstone and record.session not in sessions:
            yield f"folder of session {record.session}, which the daemon does not know"


def missing(store: Store, promises: Iterable[Promise]) -> list[str]:
    """Return, in words, the sessions whose acknowledged snapshot is not there."""
    found = []
    for promise in promises:
        there = store.generations(DEFAULT_TENANT, SessionId(promise.session_id))
        if promise.generation > max(there, default=0):
            found.append(
                f"{promise.session_id}: snapshot {promise.generation} was acknowledged, "
                f"the store has {there}"
            )
    return found


def damaged(store: Store) -> list[str]:
    """Read every byte that a manifest promises; return what does not hold, in words."""
    try:
        report = store.verify(VerifyOptions())
    except StoreError as error:
        return [f"the store cannot be read: {error.message}"]
    return [
        f"{fault.owner.session or 'unknown session'}: {fault.what} {fault.where}: {fault.why}"
        for fault in report.faults
    ]


def in_folder(temporary: Path) -> list[str]:
    """Return what lies in the temporary folder, in words."""
    return [
        f"temporary {path.name}"
        for path in sorted(temporary.iterdir())
        if not path.name.startswith(_KEPT)
    ]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
