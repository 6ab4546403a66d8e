"""The files that vLLM loads a LoRA adapter from: which they are, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sessiond.connector.checkpoint import names_are_modelscopes
from sessiond.connector.contents import Stamp
from sessiond.connector.digests import DigestCache
from sessiond.domain.canonical import JsonValue, json_digest

_CONFIG = "adapter_config.json"
#: vLLM loads the first of these that is there.
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")

#: What the file system says of each file that vLLM may load; ``None``: there is none.
Stamps = tuple[Stamp | None, ...]


def find_folder(path: str) -> Path:
    """Return the folder that vLLM loads an adapter from.

    :param path: a folder, or the name of a repository on the Hugging Face Hub
    :raises OSError: there is no such folder, and no such repository was downloaded from there
    """
    folder = Path(path).expanduser().absolute()
    if path and folder.is_dir():
        return folder
    if names_are_modelscopes():
        raise FileNotFoundError(f"There is no folder {path!r}, and names are ModelScope's.")
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - only for such names

    try:
        # Asked each time: another revision may have been downloaded meanwhile.
        config = try_to_load_from_cache(path, _CONFIG)
    except ValueError:  # no name of a repository
        config = None
    if not isinstance(config, str):
        raise FileNotFoundError(f"There is no adapter at {path!r}.")
    return Path(config).parent


def may_move(path: str) -> bool:
    """Whether the same path may mean another folder later: a name does, an absolute path not."""
    return not path.startswith("/")


def take_stamps(folder: Path) -> Stamps:
    """Return what tells whether a file was changed or replaced since the last look.

    :raises OSError: the file system does not answer that
    """
    return tuple(_stamp(f"{folder}/{name}") for name in (_CONFIG, *_WEIGHTS))


def newest_change_unix_s(folder: Path) -> float:
    """Return when anything of the adapter last changed: a file, a link to one, or the folder.

    :raises OSError: there is no such adapter
    """
    paths = [folder, *_loaded(folder).values()]
    return max(max(path.stat().st_ctime, path.lstat().st_ctime) for path in paths)


def content_digest(folder: Path, cache: DigestCache, facts: Mapping[str, JsonValue]) -> str:
    """Return the digest of what vLLM loads from the folder, as hex; its path is no part of it.

    :param facts: what else decides what the adapter does to KV
    :raises OSError: a file cannot be read
    :raises FileChangedError: one was changed meanwhile
    """
    # BLAKE3 of every file, also of one whose name in a cache tells another digest: the adapter
    # may be moved out of there.
    files: dict[str, JsonValue] = {
        name: cache.file_digest(path) for name, path in _loaded(folder).items()
    }
    return json_digest({"files": files, "facts": dict(facts)}).hex()


def _loaded(folder: Path) -> dict[str, Path]:
    weights = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise FileNotFoundError(f"There are no weights of an adapter in {folder.name!r}.")
    return {name: folder / name for name in (_CONFIG, weights)}


def _stamp(path: str) -> Stamp | None:
    try:
        # On vLLM's own thread, once a request: a Path would take three times as long.
        return Stamp.of(os.stat(path))  # noqa: PTH116 - see above
    except FileNotFoundError:
        return None
