"""Checkpoints that differ from another one in a single fact."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from sessiond.domain.tokens import common_prefix_tokens

_HUB_FOLDER = "models--{}"


def link_checkpoint(model: Path, target: Path) -> Path:
    """Make *target* a copy of a checkpoint that takes no room: its files are hard links, if
    they can be.

    Whoever changes the copy has to replace files, never to write into them.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model, target, copy_function=_link)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def replace_file(path: Path, content: str) -> None:
    """Put another file in the place of one that may have other links."""
    changed = path.with_name(f"{path.name}.changed")
    changed.write_text(content)
    changed.replace(path)


def make_hub_cache(
    folder: Path, name: str, model: Path, revisions: Mapping[str, Callable[[Path], None]]
) -> None:
    """Make a Hugging Face cache that holds a model in several revisions.

    :param name: such as ``owner/model``
    :param revisions: by commit id, what makes that revision of a copy of *model*; the first is
        ``main``
    """
    cached = folder / _HUB_FOLDER.format(name.replace("/", "--"))
    (cached / "blobs").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(next(iter(revisions)))
    for commit, change in revisions.items():
        files = link_checkpoint(model, folder / commit)
        change(files)
        snapshot = cached / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for path in files.iterdir():
            _add_blob(cached, snapshot / path.name, path)
        shutil.rmtree(files)


def _add_blob(cached: Path, place: Path, path: Path) -> None:
    with path.open("rb") as file:
        blob = cached / "blobs" / hashlib.file_digest(file, "sha256").hexdigest()
    if not blob.exists():
        os.link(path, blob)
    place.symlink_to(os.path.relpath(blob, place.parent))


def change_tokenizer(model: Path, text: str, same_tokens: int) -> None:
    """Take one merge from a checkpoint's tokenizer.

    *text* becomes other tokens then, but not its first *same_tokens*.

    :raises ValueError: no merge does that
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - only here, and not beside every vLLM

    path = model / "tokenizer.json"
    described = json.loads(path.read_text())
    merges = described["model"]["merges"]
    before = Tokenizer.from_file(str(path)).encode(text)
    for token, number in zip(before.tokens[same_tokens:], before.ids[same_tokens:], strict=True):
        if number in before.ids[:same_tokens]:
            continue
        described["model"]["merges"] = [pair for pair in merges if "".join(pair) != token]
        after = Tokenizer.from_str(json.dumps(described)).encode(text)
        if same_tokens <= common_prefix_tokens(before.ids, after.ids) < len(before.ids):
            replace_file(path, json.dumps(described))
            return
    raise ValueError("Every merge of the text's end is used at its beginning too.")
