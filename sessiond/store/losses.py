"""What a lossy snapshot's chunks have lost, as a section of its manifest."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from sessiond.domain.errors import StoreCorruptError, StoreVersionError
from sessiond.domain.loss import LOSSY_FIELD, LOSSY_WAYS, MOST_PARTS, Loss, alike
from sessiond.store.codecs import LOSSY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.snapshot import ChunkRecord, Manifest

#: A manifest has it exactly if it is lossy.
LOSS_TAG = b"LOSS"
_PARTS = struct.Struct("<I4x")
_PART = struct.Struct("<4d")


def pack_losses(manifest: Manifest) -> dict[bytes, bytes]:
    """Return the section, if the manifest has it."""
    if LOSSY_FIELD not in manifest.fingerprint.fields:
        return {}
    losses = alike([chunk.loss for chunk in manifest.chunks])
    parts = len(losses[0]) if losses else 1
    each = [_pack_part(part) for loss in losses for part in loss]
    return {LOSS_TAG: _PARTS.pack(parts) + b"".join(each)}


def with_losses(manifest: Manifest, section: bytes | None) -> Manifest:
    """Return the manifest with what its chunks have lost.

    :raises StoreCorruptError: the section is missing, too much, or tells the impossible
    """
    if LOSSY_FIELD not in manifest.fingerprint.fields:
        if section is not None:
            raise StoreCorruptError("The manifest is not lossy, but tells of losses.")
        return manifest
    if section is None or len(section) < _PARTS.size:
        raise StoreCorruptError("The section LOSS is missing or cut.")
    (parts,) = _PARTS.unpack_from(section)
    data = section[_PARTS.size :]
    if not 1 <= parts <= MOST_PARTS or len(data) != len(manifest.chunks) * parts * _PART.size:
        raise StoreCorruptError("The section LOSS does not fit the chunks.")
    losses = [Loss(*numbers) for numbers in _PART.iter_unpack(data)]
    if not all(loss.is_possible for loss in losses):
        raise StoreCorruptError("The manifest tells an impossible loss.")
    chunks = (
        _with_loss(chunk, losses[place * parts : (place + 1) * parts])
        for place, chunk in enumerate(manifest.chunks)
    )
    return replace(manifest, chunks=tuple(chunks))


def require_known_way(manifest: Manifest) -> None:
    """Refuse a manifest that is lossy in a way of later versions: it is not damaged.

    :raises StoreVersionError: it is
    """
    way = manifest.fingerprint.fields.get(LOSSY_FIELD)
    if way is not None and way not in LOSSY_WAYS:
        raise StoreVersionError(f"The manifest is lossy in the unknown way {way!r}.")


def loss_fault(manifest: Manifest) -> str:
    """Return what is impossible about a manifest's way of losing something, or nothing."""
    way = manifest.fingerprint.fields.get(LOSSY_FIELD)
    if way is None:
        lossy = any(chunk.codec in LOSSY for chunk in manifest.chunks)
        return "it has lossy chunks without saying so" if lossy else ""
    return "" if way in LOSSY_WAYS else "it is lossy in an unknown way"


def _with_loss(chunk: ChunkRecord, parts: Sequence[Loss]) -> ChunkRecord:
    return replace(chunk, loss=tuple(parts)) if any(part != Loss() for part in parts) else chunk


def _pack_part(part: Loss) -> bytes:
    return _PART.pack(part.error_squares, part.squares, part.largest_error, part.largest)
