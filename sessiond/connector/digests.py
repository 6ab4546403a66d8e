"""Content digests of a model's files, cached by what the file system says of each file."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from sessiond.domain.canonical import JsonValue, json_digest
from sessiond.domain.errors import UnsupportedEngineError

#: Files that decide what the weights are.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
#: Files that decide which tokens a text becomes.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tekken.json",
)


class DigestCache:
    """BLAKE3 digests by (device, inode, size, mtime, ctime): a changed file is hashed again.

    :param path: where the cache is kept; losing it costs time only
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no JSON, or no object
            known = json.loads(path.read_text())
            self._known = {str(key): str(value) for key, value in known.items()}

    def file_digest(self, path: Path) -> str:
        """Return the BLAKE3 digest of a file's content, as hex.

        :raises OSError: the file cannot be read
        """
        stat = path.stat()
        key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
        if key not in self._known:
            hasher = blake3(max_threads=blake3.AUTO)
            hasher.update_mmap(path)
            self._known[key] = hasher.hexdigest()
            with contextlib.suppress(OSError):
                self._save()
        return self._known[key]

    def files_digest(self, paths: Iterable[Path], base: Path) -> str:
        """Return the digest of several files: of their names below *base* and their contents."""
        named: dict[str, JsonValue] = {
            str(path.relative_to(base)): self.file_digest(path) for path in sorted(paths)
        }
        return json_digest(named).hex()

    def _save(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(self._known, file)
            Path(name).replace(self._path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def weight_files(model: Path) -> list[Path]:
    """Return the files that hold the weights of a local checkpoint.

    :raises UnsupportedEngineError: there is none
    """
    if model.is_file():
        return [model]
    found = [path for path in model.iterdir() if path.suffix in WEIGHT_SUFFIXES and path.is_file()]
    if not found:
        raise UnsupportedEngineError(
            f"The model folder {model.name!r} holds no weight files, so sessiond cannot tell "
            "which weights computed its KV."
        )
    # All of them, whichever the load format takes: a needless recompute is no wrong token.
    return found


def code_files(model: Path) -> list[Path]:
    """Return the code that a checkpoint brings along (``trust_remote_code``)."""
    return [path for path in model.rglob("*.py") if path.is_file()]


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the tokenizer's files of a local checkpoint."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
