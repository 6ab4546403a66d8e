"""What proves that a chunk's bytes are the ones that belong at its place.

A chunk's checksum is XXH3-128 over a 96-byte prefix and the raw (decoded) bytes::

    offset  bytes  what
         0     16  b"sessiond chunk 1"
        16      4  group, unsigned, little-endian, like all numbers
        20      4  start token
        24      4  end token
        28      4  zero
        32     32  chain digest: SHA-256 of the token ids from 0 to the chunk's end
        64     32  digest of the fingerprint's bytes class
        96      …  the raw bytes

So bytes of another place, another context or another engine fail like damaged bytes. XXH3 is
no defence against somebody who can write to the store: FORMAT.md, "Threat model".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

CHECKSUM_BYTES = 16
DIGEST_BYTES = 32

_PREFIX = struct.Struct("<16sIII4x32s32s")
_TAG = b"sessiond chunk 1"


@dataclass(frozen=True)
class ChunkPosition:
    """Which tokens of which context a chunk holds."""

    group: int
    start_token: int
    end_token: int
    chain_digest: bytes  #: SHA-256 of the token ids from 0 to ``end_token``: 32 bytes


def chunk_checksum(
    position: ChunkPosition, bytes_digest: bytes, raw: Iterable[npt.NDArray[np.uint8]]
) -> bytes:
    """Return the checksum of a chunk's raw bytes at their position: 16 bytes.

    :param raw: the bytes, in pieces
    """
    prefix = _PREFIX.pack(
        _TAG,
        position.group,
        position.start_token,
        position.end_token,
        position.chain_digest,
        bytes_digest,
    )
    state = xxhash.xxh3_128(prefix)
    for piece in raw:
        state.update(piece.data)
    return state.digest()


def short_check(data: bytes | memoryview) -> bytes:
    """Return the XXH3-64 of a header, footer or line: 8 bytes."""
    return xxhash.xxh3_64_digest(data)


def long_check(data: bytes | memoryview) -> bytes:
    """Return the XXH3-128 of an index: 16 bytes."""
    return xxhash.xxh3_128_digest(data)
