"""What a file holds, and what the file system says of it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from blake3 import blake3

from sessiond.domain.errors import FileChangedError

_PIECE_BYTES = 4 << 20
_BLOB = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class _Hasher(Protocol):
    def update(self, data: memoryview, /) -> object: ...
    def hexdigest(self) -> str: ...


def _git_sha1(size_bytes: int) -> _Hasher:
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


#: By name; each is given the size of the file.
ALGORITHMS: Mapping[str, Callable[[int], _Hasher]] = {
    "blake3": lambda _: blake3(),
    "sha256": lambda _: hashlib.sha256(),
    "git-sha1": _git_sha1,
}


@dataclass(frozen=True)
class Stamp:
    """What the file system says of one file: other bytes mean another stamp, but for
    the grain of the file system's clock."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        """Return the stamp in what ``stat`` told."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    @property
    def key(self) -> str:
        """The name under which the file's digests are cached."""
        parts = (self.device, self.inode, self.size_bytes, self.mtime_ns, self.ctime_ns)
        return ":".join(map(str, parts))


@dataclass(frozen=True)
class Content:
    """What one file holds."""

    digest: str  #: with the algorithm's name
    is_named: bool  #: whether the file's own name says so too, as in the Hugging Face cache


def blob_name(path: Path) -> str | None:
    """Return what a Hugging Face cache calls the content of this file: a SHA-256, or git's SHA-1
    of small files; ``None`` for a file that lies elsewhere."""
    blob = path.resolve()
    in_cache = blob.parent.name == "blobs" and blob.parent.parent.name.startswith("models--")
    return blob.name if in_cache and _BLOB.fullmatch(blob.name) else None


def algorithms_of(blob: str | None) -> list[str]:
    """Return which digests tell what a file holds that the cache calls *blob*."""
    if blob is None:
        return ["blake3"]
    # SHA-1 proves no identity any more; small files are read in no time.
    return ["sha256"] if len(blob) == 64 else ["blake3", "git-sha1"]


def content_of(blob: str | None, digests: Mapping[str, str]) -> Content:
    """Return the same of a file with these digests."""
    by_name = "sha256" if blob is not None and len(blob) == 64 else "blake3"
    checked = digests.get("sha256" if by_name == "sha256" else "git-sha1")
    return Content(f"{by_name}:{digests[by_name]}", is_named=blob is not None and checked == blob)


def hash_file(path: Path, stamp: Stamp, algorithms: Iterable[str]) -> dict[str, str]:
    """Return a file's digests by their names, as hex, after reading it once.

    :raises OSError: it cannot be read
    :raises FileChangedError: it is not the one of *stamp*, or was changed meanwhile
    """
    # Not mapped: a mapped file that is cut would end the process.
    hashers = {name: ALGORITHMS[name](stamp.size_bytes) for name in algorithms}
    buffer = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        _require(file.fileno(), stamp, path)
        while count := file.readinto(buffer):
            for hasher in hashers.values():
                hasher.update(memoryview(buffer)[:count])
        _require(file.fileno(), stamp, path)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def _require(descriptor: int, stamp: Stamp, path: Path) -> None:
    if Stamp.of(os.fstat(descriptor)) != stamp:
        raise FileChangedError(f"{path.name} was changed while its digest was taken.")
