"""The engine's fingerprint: known at once if its files were digested before, or taken by a thread
of its own while the engine serves.

Files are met when the connector starts, right after the weights were loaded. Of a file that was
changed between the start of the process and that moment nobody knows which version was loaded;
one that is changed later is noticed when its digest is taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sessiond.connector.contents import Content, Stamp, blob_name
from sessiond.connector.digests import DigestCache
from sessiond.connector.guard import guarded
from sessiond.connector.layers import Told
from sessiond.connector.loaded import is_changed_since
from sessiond.domain.canonical import JsonValue, json_digest
from sessiond.domain.errors import FileChangedError, SessiondError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.reasons import Cause, Reason
from sessiond.store.priority import lower_this_thread

logger = logging.getLogger("vllm.sessiond.identity")


@dataclass(frozen=True)
class Part:
    """The files whose contents make one fact of a fingerprint."""

    name: str
    base: Path  #: where its files lie does not matter, their names below it do
    loaded_ns: int  #: files that were changed later may not be those that were loaded
    files: Mapping[Path, Stamp]
    complete: bool = False  #: whether a file that came or went would have been one of them

    @classmethod
    def meet(
        cls,
        name: str,
        base: Path,
        loaded_ns: int,
        paths: Iterable[Path],
        *,
        complete: bool = False,
    ) -> Self:
        """Note what the files are now.

        :raises OSError: one is not there
        """
        files = {path: Stamp.of(path.stat()) for path in sorted(paths)}
        return cls(name, base, loaded_ns, files, complete)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(stamp.size_bytes for stamp in self.files.values())

    def require_loaded(self, cache: DigestCache) -> None:
        """Check what is known without reading: that no file was changed while the engine began.

        :raises FileChangedError: one was, or came, or went
        :raises OSError: one is not there any more
        """
        if self.complete and self.base.stat().st_mtime_ns > self.loaded_ns:
            raise FileChangedError(f"Files of {self.base.name} came or went as the engine began.")
        for path, stamp in self.files.items():
            young = stamp.ctime_ns > self.loaded_ns
            touched = young and cache.digest_before(stamp, self.loaded_ns) is not None
            if blob_name(path) is None and is_changed_since(path, self.loaded_ns, touched=touched):
                raise _changed(path)

    def digest(self, contents: Mapping[Path, Content], cache: DigestCache) -> str:
        """Return the digest of the files' names and contents, as hex.

        :raises FileChangedError: one may not be what was loaded
        :raises OSError: one is not there any more
        """
        for path, content in contents.items():
            if not self._is_loaded(path, content, cache):
                raise _changed(path)
        named: dict[str, JsonValue] = {
            str(path.relative_to(self.base)): content.digest for path, content in contents.items()
        }
        return json_digest(named).hex()

    def _is_loaded(self, path: Path, content: Content, cache: DigestCache) -> bool:
        """Whether this content is what was loaded, as far as only reading it could tell."""
        if blob_name(path) is not None:
            return not is_changed_since(path, self.loaded_ns, named=content.is_named)
        stamp = self.files[path]
        if stamp.ctime_ns <= self.loaded_ns:
            return True
        return content.digest == f"blake3:{cache.digest_before(stamp, self.loaded_ns)}"


def _changed(path: Path) -> FileChangedError:
    return FileChangedError(f"{path.name} was changed after the engine had begun.")


# What they have resolved decides bytes: two engines of which it is not known are not alike.
_NO_LAYERS = "the engine's workers told nothing of their layers"

Complete = Callable[[Mapping[str, str], Told], Fingerprint]
_Find = Callable[[Part], Mapping[Path, Content] | None]


class Identity:
    """An engine's fingerprint, or why there is none.

    :param parts: the files that count, as they were met
    :param complete: makes the fingerprint of the digests of all parts, by name, and of what the
        workers tell
    :param doubt: why the files may not be those that were loaded; empty if they are
    """

    def __init__(
        self, parts: Sequence[Part], cache: DigestCache, complete: Complete, doubt: str = ""
    ) -> None:
        self._parts, self._cache, self._complete = parts, cache, complete
        self._doubt = doubt
        self._told: Told | None = None
        self._ended = threading.Event()
        self._outcome: Fingerprint | Cause | None = None

    @property
    def outcome(self) -> Fingerprint | Cause | None:
        """The fingerprint, why it cannot be known, or ``None`` while it is being taken."""
        return self._outcome

    @property
    def pending(self) -> Cause:
        """What to answer while it is being taken."""
        size_gb = sum(part.size_bytes for part in self._parts) / 1e9
        return Cause(Reason.IDENTITY_PENDING, f"reading {size_gb:.1f} GB of files")

    def take(self, told: Told) -> None:
        """Find it out; returns at once. What is not known is read at low priority.

        Only the first call counts.
        """
        if self._told is not None:
            return
        self._told = told
        doubt = self._doubt or told.doubt or ("" if told.layers else _NO_LAYERS)
        self._end(self._judged(self._known) if not doubt else _unknown(doubt))
        if self._outcome is None:
            threading.Thread(target=self._run, name="sessiond-identity", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Return when there is an outcome, or after *timeout_s*."""
        self._ended.wait(timeout_s)

    def _run(self) -> None:
        began_s = time.monotonic()
        lower_this_thread()
        self._end(self._judged(self._read))
        logger.info("sessiond: the fingerprint took %.1f s", time.monotonic() - began_s)

    def _end(self, outcome: Fingerprint | Cause | None) -> None:
        self._outcome = outcome
        if outcome is not None:
            self._ended.set()

    @guarded(Cause(Reason.IDENTITY_UNKNOWN, "sessiond failed, see the engine's log"))
    def _judged(self, find: _Find) -> Fingerprint | Cause | None:
        try:
            found = [(part.name, part, find(part)) for part in self._parts]
            digests = {
                name: part.digest(contents, self._cache)
                for name, part, contents in found
                if contents is not None
            }
        except (SessiondError, OSError) as error:
            return _unknown(str(error))
        if len(digests) < len(found):
            return None
        return self._complete(digests, self._told or Told())

    def _known(self, part: Part) -> Mapping[Path, Content] | None:
        part.require_loaded(self._cache)
        known = {path: self._cache.known_content(path, s) for path, s in part.files.items()}
        contents = {path: content for path, content in known.items() if content is not None}
        return contents if len(contents) == len(known) else None

    def _read(self, part: Part) -> Mapping[Path, Content]:
        return {path: self._cache.content(path, stamp) for path, stamp in part.files.items()}


def _unknown(why: str) -> Cause:
    return Cause(Reason.IDENTITY_UNKNOWN, why)
