"""Which content the LoRA adapters of this engine have, as far as that can be proved.

vLLM keeps some adapters in memory and loads the others from their files again when they are
asked for. So a digest of the files says what computed some KV only if they never changed: they
are looked at before vLLM loads them for the first time, and on each request of a session. One
whose files changed meanwhile is not trusted again while this engine lives: nobody can tell
which of its KV has which weights.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessiond.connector.adapter_files import (
    Stamps,
    content_digest,
    find_folder,
    may_move,
    newest_change_unix_s,
    take_stamps,
)
from sessiond.connector.digests import SETTLED_S, DigestCache
from sessiond.connector.frontend import LoraModule
from sessiond.domain.canonical import JsonValue
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.errors import FileChangedError

if TYPE_CHECKING:
    from vllm.config import LoRAConfig
    from vllm.lora.request import LoRARequest

logger = logging.getLogger("vllm.sessiond.adapters")

#: Adapters that nobody asks for are looked at this often.
_LOOK_S = 10.0
_UNKNOWN = "its files are being read; its next turns are kept"
_CHANGED = "its files changed while the engine ran"
_TOO_NEW = "its files are newer than the engine"
_UNREADABLE = "its files cannot be read"


@dataclass
class _Entry:
    module: LoraModule
    folder: Path | None = None
    stamps: Stamps = ()  #: of the files at the first look
    digest: str = ""
    unproven: str = _UNKNOWN

    def served(self) -> ServedAdapter:
        pending = self.unproven == _UNKNOWN
        return ServedAdapter(self.module.name, self.digest, self.unproven, pending=pending)

    def withdraw(self, why: str) -> None:
        self.digest, self.unproven = "", why


class AdapterBook:
    """The adapters that requests may name. Created before vLLM loads the first of them.

    :param facts: options of the engine that decide what it makes of an adapter's files
    :param trusting: an operator promises that adapters do not change in place, so those that
        are newer than the engine count too
    :ivar on_change: called with all adapters, from any thread, when something is news
    """

    def __init__(
        self, cache: DigestCache, facts: Mapping[str, JsonValue], *, trusting: bool
    ) -> None:
        self._cache = cache
        self._facts = dict(facts)
        self._trusting = trusting
        self._began_unix_s = time.time()
        self._entries: dict[LoraModule, _Entry] = {}
        self._named: dict[str, _Entry] = {}  # by name, the one asked for last
        self._unread: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.on_change: Callable[[tuple[ServedAdapter, ...]], None] | None = None

    def expect(self, modules: Iterable[LoraModule]) -> None:
        """Take notice of adapters that vLLM has not loaded yet."""
        for module in modules:
            self._add(module)

    def meet(self, module: LoraModule) -> None:
        """Take notice of the adapter of some request, unless it is known."""
        if module not in self._entries:
            self._add(module)

    def look(self, module: LoraModule) -> ServedAdapter:
        """Look at an adapter's files, and return what is proved of it now."""
        self.meet(module)
        entry = self._entries[module]
        same = _has_same_files(entry)  # not under the lock: a disk may hang
        with self._lock:
            is_news = self._named.get(module.name) is not entry
            self._named[module.name] = entry
            is_news |= _judge(entry, same=same)
            found = entry.served()
        if is_news:
            self._tell()
        return found

    def served(self) -> tuple[ServedAdapter, ...]:
        """Return all adapters that are known, by name."""
        with self._lock:
            return tuple(self._named[name].served() for name in sorted(self._named))

    def start(self) -> None:
        """Begin to read files, in a thread of its own: they may be large, and disks slow."""
        self._thread = threading.Thread(target=self._run, name="sessiond-adapters", daemon=True)
        self._thread.start()

    def _add(self, module: LoraModule) -> None:
        entry = _Entry(module)
        try:
            entry.folder = find_folder(module.path)
            entry.stamps = take_stamps(entry.folder)
            # vLLM may have loaded it before, and nobody seen what happened to it since.
            late = newest_change_unix_s(entry.folder) > self._began_unix_s - SETTLED_S
            if late and not self._trusting:
                entry.withdraw(_TOO_NEW)
        except OSError:
            entry.withdraw(_UNREADABLE)
        with self._lock:
            self._entries[module] = self._named[module.name] = entry
        self._unread.put(entry)

    def _run(self) -> None:
        while True:
            try:
                self._step()
            except Exception:
                logger.exception("sessiond: the LoRA adapters could not be looked at")

    def _step(self) -> None:
        try:
            entry = self._unread.get(timeout=_LOOK_S)
        except queue.Empty:
            self._look_at_all()
            return
        self._read(entry)
        self._tell()

    def _read(self, entry: _Entry) -> None:
        if entry.folder is None or entry.unproven != _UNKNOWN:
            return
        facts = {**self._facts, "fused_experts": entry.module.fused_experts}
        digest, why = "", ""
        try:
            digest = content_digest(entry.folder, self._cache, facts)
        except FileChangedError:
            why = _CHANGED
        except Exception:
            logger.exception("sessiond: the LoRA adapter %r cannot be read", entry.module.name)
            why = _UNREADABLE
        same = _has_same_files(entry)
        with self._lock:
            entry.digest, entry.unproven = digest, why
            _judge(entry, same=same)

    def _look_at_all(self) -> None:
        with self._lock:
            entries = list(self._entries.values())
        found = [(entry, _has_same_files(entry)) for entry in entries if entry.digest]
        with self._lock:
            changed = [entry for entry, same in found if _judge(entry, same=same)]
        if changed:
            self._tell()

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change(self.served())


def _has_same_files(entry: _Entry) -> bool:
    """Whether the files are still those of the first look."""
    folder, path = entry.folder, entry.module.path
    try:
        there = find_folder(path) if may_move(path) else folder
        return there is not None and there == folder and take_stamps(there) == entry.stamps
    except OSError:
        return False


def _judge(entry: _Entry, *, same: bool) -> bool:
    """Withdraw a digest whose files are not those that were read; return whether it was."""
    if same or not entry.digest:
        return False
    entry.withdraw(_CHANGED)
    logger.warning(
        "sessiond: the files of the LoRA adapter %r changed. Its turns are served and not "
        "kept until the engine is restarted.",
        entry.module.name,
    )
    return True


def module_of(asked: LoRARequest) -> LoraModule:
    """Return the adapter that a request of vLLM names."""
    # Until vLLM 0.31 one could come from a tensorizer archive: that is no folder to be read.
    archive = getattr(asked, "tensorizer_config_dict", None)
    return LoraModule(
        name=asked.lora_name,
        path="" if archive else asked.lora_path,
        fused_experts=bool(getattr(asked, "is_3d_lora_weight", False)),
    )


def lora_facts(config: LoRAConfig | None) -> dict[str, JsonValue]:
    """Return the engine's options that decide what it makes of an adapter's files."""
    if config is None:
        return {}
    modules: Any = config.target_modules
    return {
        "dtype": str(config.lora_dtype).removeprefix("torch."),
        "target_modules": sorted(modules) if modules is not None else None,
        "mixed_experts": bool(getattr(config, "enable_mixed_moe_lora_format", False)),
        "shared_experts": bool(getattr(config, "enable_moe_shared_loras", False)),
    }
