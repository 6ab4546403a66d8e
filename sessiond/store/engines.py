"""Engine files: what a live engine is and can do. Its lock, not its heartbeat, proves its life."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from sessiond.domain.engines import EngineInfo, ServedAdapter, SharedFile
from sessiond.domain.errors import ConfigurationError, EngineNotFoundError, StoreError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import EngineId
from sessiond.store import layout, sealed
from sessiond.store.fields import Fields
from sessiond.store.fileio import Publish, is_linked, lock_exclusive, store_errors, try_lock
from sessiond.store.tree import list_names

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from sessiond.domain.keys import KeyRing
    from sessiond.store.fileio import FileOps
    from sessiond.store.parsed import ParsedFiles
    from sessiond.store.tree import Tree

#: A longer engine file is not looked at.
MAX_ENGINE_FILE_BYTES = 1 << 20
_KIND = "engine"
#: Of all files of an engine.
_SUFFIXES = (".json", ".lock", layout.DRAIN_SUFFIX)


class EngineFile:
    """A live engine's file; the engine counts as live until this is closed or its process ends."""

    def __init__(self, tree: Tree, keys: KeyRing, info: EngineInfo) -> None:
        _require_name(info.engine_id)
        self._tree, self._keys = tree, keys
        self._engine_id = info.engine_id
        self._lock_fd = _take_lock(tree, info.engine_id)
        try:
            self.update(info)
        except BaseException:
            self.close()
            raise

    def update(self, info: EngineInfo) -> None:
        """Replace what the file tells, such as its heartbeat.

        :raises StoreError: it cannot be written.
        """
        if info.engine_id != self._engine_id:
            raise ConfigurationError("An engine's id never changes while it lives.")
        data = pack_engine(info, self._keys)
        with store_errors("Writing the engine's file"):
            # Not synced: after a power failure no engine lives, and nobody reads it.
            name = layout.engine_file(self._engine_id)
            self._tree.write(layout.ENGINES, name, data, Publish.HINT)

    def close(self) -> None:
        """Remove the files and give up the lock."""
        if self._lock_fd < 0:
            return
        try:
            with store_errors("Removing the engine's file"):
                _remove_files(self._tree, self._engine_id)
        finally:
            self._tree.ops.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def live_engines(tree: Tree, keys: KeyRing, parsed: ParsedFiles) -> list[EngineInfo]:
    """Return the engines whose lock is held; one whose file cannot be read is left out."""
    try:
        with tree.folder(layout.ENGINES) as folder_fd:
            names = list_names(folder_fd)
            return [
                replace(info, draining=True) if layout.drain_file(engine_id) in names else info
                for engine_id in _ids_among(names)
                if _lock_is_held(tree.ops, engine_id, folder_fd)
                and (info := _read_parsed(tree.ops, keys, parsed, engine_id, folder_fd))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []  # as in a store that was not made whole


def dead_engines(tree: Tree, keys: KeyRing) -> list[EngineInfo]:
    """Return the engines that ended without removing their files, as far as these tell."""
    return [
        info
        for engine_id in engine_ids(tree)
        if not engine_is_live(tree, engine_id) and (info := _read(tree, keys, engine_id))
    ]


def engine_ids(tree: Tree) -> list[EngineId]:
    """Return the ids of all engines that have left a file, live or dead."""
    return _ids_among(tree.names(layout.ENGINES))


def _ids_among(names: Iterable[str]) -> list[EngineId]:
    stems = {name.rpartition(".")[0] for name in names if name.endswith(_SUFFIXES)}
    return [EngineId(stem) for stem in sorted(stems) if layout.is_engine_id(stem)]


def engine_is_live(tree: Tree, engine_id: str) -> bool:
    """Whether a process holds the engine's lock."""
    if not layout.is_engine_id(engine_id):
        return False
    try:
        with tree.folder(layout.ENGINES) as folder_fd:
            return _lock_is_held(tree.ops, engine_id, folder_fd)
    except OSError:
        return False


def _lock_is_held(ops: FileOps, engine_id: str, folder_fd: int) -> bool:
    name = layout.engine_lock_file(engine_id)
    try:
        lock_fd = ops.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder_fd)
    except OSError:
        return False
    try:
        # Shared, so that two who ask at once do not take each other for the engine.
        return not try_lock(lock_fd, exclusive=False)
    finally:
        ops.close(lock_fd)


def remove_dead_engines(tree: Tree, keep: Container[EngineId] = ()) -> list[str]:
    """Remove the files of engines that are gone, but for *keep*; returns their ids."""
    ids = (engine_id for engine_id in engine_ids(tree) if engine_id not in keep)
    return [engine_id for engine_id in ids if _remove_if_dead(tree, engine_id)]


def read_engine(tree: Tree, keys: KeyRing, engine_id: str) -> EngineInfo:
    """Return what an engine's file tells.

    :raises EngineNotFoundError: there is no such file.
    :raises StoreError: it cannot be read.
    """
    _require_name(engine_id)
    name = layout.engine_file(engine_id)
    try:
        with store_errors("Reading an engine's file"):
            data = tree.read(layout.ENGINES, name, MAX_ENGINE_FILE_BYTES)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise EngineNotFoundError from error
        raise
    return unpack_engine(data, keys)


def pack_engine(info: EngineInfo, keys: KeyRing) -> bytes:
    """Return the engine's file."""
    values = {**asdict(info), "fingerprint": dict(info.fingerprint.fields)}
    del values["draining"]  # a mark of others
    return sealed.pack_json(_KIND, values, keys)


def unpack_engine(data: bytes, keys: KeyRing) -> EngineInfo:
    """Read an engine's file.

    :raises StoreCorruptError: it is damaged.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    fields = Fields(sealed.unpack_json(data, _KIND, keys))
    return EngineInfo(
        engine_id=EngineId(fields.text("engine_id")),
        url=fields.text("url"),
        model=fields.text("model"),
        pid=fields.count("pid"),
        started_unix_s=fields.number("started_unix_s"),
        heartbeat_unix_s=fields.number("heartbeat_unix_s"),
        fingerprint=Fingerprint(fields.mapping("fingerprint")),
        chunk_tokens=fields.count("chunk_tokens"),
        chunk_bytes=fields.count("chunk_bytes"),
        ram_tier_chunks=fields.count("ram_tier_chunks"),
        max_model_tokens=fields.count("max_model_tokens"),
        vllm_version=fields.text("vllm_version"),
        shared_files=tuple(
            SharedFile(file.text("name"), file.count("inode"))
            for file in fields.objects("shared_files")
        ),
        tier_off=fields.text("tier_off"),
        tier_off_reason=fields.text("tier_off_reason"),
        attestable=fields.flag("attestable"),
        resets=fields.count("resets"),
        adapters=tuple(
            ServedAdapter(
                adapter.text("name"),
                adapter.text("digest"),
                adapter.text("unproven"),
                pending=adapter.flag("pending"),
            )
            for adapter in fields.objects("adapters")
        ),
        keeps_replies=fields.flag("keeps_replies"),
        lossy=fields.later_text("lossy"),
        launch=fields.later_text("launch"),
    )


def _read_parsed(
    ops: FileOps, keys: KeyRing, parsed: ParsedFiles, engine_id: EngineId, folder_fd: int
) -> EngineInfo | None:
    place = layout.ENGINES, layout.engine_file(engine_id)
    unpack = partial(unpack_engine, keys=keys)
    try:
        return parsed.read(ops, place, folder_fd, MAX_ENGINE_FILE_BYTES, unpack)
    except (StoreError, OSError):
        return None  # as below


def _read(tree: Tree, keys: KeyRing, engine_id: EngineId) -> EngineInfo | None:
    try:
        return read_engine(tree, keys, engine_id)
    except (StoreError, EngineNotFoundError):
        return None  # it is just starting or ending, or belongs to another key


def _require_name(engine_id: str) -> None:
    if not layout.is_engine_id(engine_id):
        raise ConfigurationError(
            "An engine id must be 1 to 64 letters, digits, '_' or '-', not beginning with '_-'."
        )


def _take_lock(tree: Tree, engine_id: str) -> int:
    name = layout.engine_lock_file(engine_id)
    with store_errors("Taking the engine's lock"), tree.folder(layout.ENGINES) as folder_fd:
        while True:
            lock_fd = tree.ops.open(name, os.O_RDWR | os.O_CREAT, dir_fd=folder_fd)
            # Who asks whether the engine lives holds the lock for a moment: wait.
            lock_exclusive(lock_fd)
            if is_linked(lock_fd, name, dir_fd=folder_fd):
                return lock_fd
            tree.ops.close(lock_fd)


def _remove_if_dead(tree: Tree, engine_id: EngineId) -> bool:
    name = layout.engine_lock_file(engine_id)
    with tree.folder(layout.ENGINES) as folder_fd:
        # Made if it is missing: an engine that starts meanwhile must find it locked.
        lock_fd = tree.ops.open(name, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, dir_fd=folder_fd)
        try:
            if not try_lock(lock_fd, exclusive=True):
                return False
            if not is_linked(lock_fd, name, dir_fd=folder_fd):
                return False  # ended and started again meanwhile: the name is a new lock
            _remove_files(tree, engine_id)
            return True
        finally:
            tree.ops.close(lock_fd)


def _remove_files(tree: Tree, engine_id: str) -> None:
    """Remove an engine's files; the lock is held, and goes last."""
    tree.unlink(layout.ENGINES, layout.engine_file(engine_id), sync=False)
    tree.unlink(layout.ENGINES, layout.drain_file(engine_id), sync=False)
    tree.unlink(layout.ENGINES, layout.engine_lock_file(engine_id), sync=False)
