"""Content digests of files, cached by what the file system says of each file.

What is trusted: the store root (mode 0700), everybody who runs as its owner, and the server key.
The cache is sealed with a key derived from that, so a file that somebody planted, or that is
broken, costs time and never gives a wrong digest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from sessiond.connector.contents import (
    ALGORITHMS,
    Content,
    Stamp,
    algorithms_of,
    blob_name,
    content_of,
    hash_file,
)
from sessiond.domain.canonical import JsonValue, json_digest
from sessiond.domain.errors import StoreError
from sessiond.domain.keys import KeyRing
from sessiond.store import sealed

logger = logging.getLogger("vllm.sessiond.digests")

_KIND = "digests"
_MAX_CACHE_BYTES = 16 << 20
#: The oldest entries beyond this many are forgotten.
_MAX_ENTRIES = 20_000
#: A file that was changed this recently may change again and keep its time: clocks of file
#: systems have grains of up to two seconds. Its digest is taken, but not remembered.
SETTLED_S = 3.0
_HEX = re.compile(r"[0-9a-f]{40,64}")


class DigestCache:
    """Digests of files; a changed file is read again. Safe to use from several threads.

    :param path: where the cache is kept; losing it costs time only
    :param keys: seal it
    :param settled_s: remember only files that were left alone for this long
    """

    def __init__(self, path: Path, keys: KeyRing, *, settled_s: float = SETTLED_S) -> None:
        self._path, self._keys = path, keys
        self._settled_ns = int(settled_s * 1e9)
        self._known = self._read()
        self._used: dict[Path, str] = {}
        self._lock = threading.Lock()

    def file_digest(self, path: Path) -> str:
        """Return the BLAKE3 digest of a file's content, as hex.

        :raises OSError: the file cannot be read
        :raises FileChangedError: it was changed meanwhile
        """
        return self._digests(path, Stamp.of(path.stat()), ["blake3"])["blake3"]

    def files_digest(self, paths: Iterable[Path], base: Path) -> str:
        """Return the digest of several files: of their names below *base* and their contents.

        :raises OSError: one cannot be read
        :raises FileChangedError: one was changed meanwhile
        """
        named: dict[str, JsonValue] = {
            str(path.relative_to(base)): self.file_digest(path) for path in sorted(paths)
        }
        return json_digest(named).hex()

    def content(self, path: Path, stamp: Stamp) -> Content:
        """Return what a file holds. A blob of a Hugging Face cache is told by its name, after it
        was read once to check that; every other file by its BLAKE3 digest.

        :param stamp: what it was when the caller met it
        :raises OSError: it cannot be read
        :raises FileChangedError: it is not that file any more, or was changed meanwhile
        """
        name = blob_name(path)
        return content_of(name, self._digests(path, stamp, algorithms_of(name)))

    def known_content(self, path: Path, stamp: Stamp) -> Content | None:
        """Return the same without reading the file, or ``None`` if it would have to be read."""
        name = blob_name(path)
        known = self._known.get(stamp.key, {})
        self._used[path] = stamp.key
        has_all = all(algorithm in known for algorithm in algorithms_of(name))
        return content_of(name, known) if has_all else None

    def digest_before(self, stamp: Stamp, moment_ns: int) -> str | None:
        """Return the BLAKE3 digest that the same file, of this size and time, had when it was read
        before that moment; ``None`` if it was not.

        Links and rights change a file's change time, too, and not its content.
        """
        same, _, _ = stamp.key.rpartition(":")
        for key, digests in self._known.items():
            file, _, ctime_ns = key.rpartition(":")
            if file == same and ctime_ns.isdecimal() and int(ctime_ns) <= moment_ns:
                return digests.get("blake3")
        return None

    def changed_files(self) -> list[str]:
        """Return the names of the files that are not those whose digests were asked for."""
        used = list(self._used.items())  # another thread may add to it
        return sorted(path.name for path, key in used if key != _key_now(path))

    def _digests(self, path: Path, stamp: Stamp, algorithms: Iterable[str]) -> Mapping[str, str]:
        self._used[path] = stamp.key
        known = self._known.get(stamp.key, {})
        missing = [algorithm for algorithm in algorithms if algorithm not in known]
        if not missing:
            return known
        taken = {**known, **hash_file(path, stamp, missing)}
        age_ns = time.time_ns() - max(stamp.ctime_ns, stamp.mtime_ns)
        if age_ns > self._settled_ns:
            self._remember(stamp.key, taken)
        return taken

    def _remember(self, key: str, digests: Mapping[str, str]) -> None:
        with self._lock, contextlib.suppress(OSError):
            # What other engines found meanwhile stays; ours goes last, as the newest.
            known = {**self._read(), **self._known}
            known.pop(key, None)
            known[key] = dict(digests)
            self._known = dict(list(known.items())[-_MAX_ENTRIES:])
            self._save()

    def _read(self) -> dict[str, dict[str, str]]:
        with contextlib.suppress(OSError, StoreError):
            with self._path.open("rb") as file:
                data = file.read(_MAX_CACHE_BYTES)
            record = sealed.unpack_json(data, _KIND, self._keys)
            return {key: found for key, value in record.items() if (found := _found(value))}
        return {}

    def _save(self) -> None:
        data = sealed.pack_json(_KIND, self._known, self._keys)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).replace(self._path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def _key_now(path: Path) -> str:
    try:
        return Stamp.of(path.stat()).key
    except OSError:
        return ""


def _found(value: JsonValue) -> dict[str, str]:
    """Return the digests of one entry, without anything that is none."""
    if not isinstance(value, Mapping):
        return {}
    return {
        name: digest
        for name, digest in value.items()
        if name in ALGORITHMS and isinstance(digest, str) and _HEX.fullmatch(digest)
    }
