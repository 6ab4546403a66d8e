"""Token sequences: compact arrays, common prefixes and chain digests."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence

#: Token ids as unsigned 32-bit integers.
TokenIds = array

TOKEN_BYTES = 4
if array("I").itemsize != TOKEN_BYTES:  # pragma: no cover - no such platform runs vLLM
    raise ImportError("sessiond needs 32-bit unsigned ints in array('I').")


def token_ids(values: Iterable[int]) -> TokenIds[int]:
    """Return *values* as token ids.

    :raises OverflowError: a value is negative or does not fit 32 bits.
    """
    return array("I", values)


def to_bytes(tokens: TokenIds[int]) -> bytes:
    """Return the tokens as little-endian 32-bit integers."""
    return _little_endian(tokens).tobytes()


def from_bytes(data: bytes | memoryview) -> TokenIds[int]:
    """Read what :func:`to_bytes` wrote.

    :raises ValueError: the length of *data* is no multiple of four.
    """
    tokens = array("I")
    tokens.frombytes(data)
    return _little_endian(tokens)


def common_prefix_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens the two sequences share."""
    if type(left) is not type(right):  # an array never equals a list
        left, right = list(left), list(right)
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low, high = 0, length
    while high - low > 1:  # invariant: equal up to low, different somewhere before high
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def whole_chunk_tokens(tokens: int, chunk_tokens: int) -> int:
    """Return *tokens* rounded down to whole chunks."""
    return tokens - tokens % chunk_tokens


def chain_digests(tokens: TokenIds[int], chunk_tokens: int) -> list[bytes]:
    """Return, for each whole chunk, the SHA-256 of all tokens from 0 to the chunk's end.

    Two chunks with equal digests were computed from the same context, whatever key an engine
    gives them.
    """
    data = memoryview(to_bytes(tokens))
    step = chunk_tokens * TOKEN_BYTES
    running = hashlib.sha256()
    digests = []
    for start in range(0, len(data) - step + 1, step):
        running.update(data[start : start + step])
        digests.append(running.copy().digest())
    return digests


def head_digest(tokens: TokenIds[int]) -> str:
    """Return the SHA-256 of a head's tokens, as hex."""
    return hashlib.sha256(to_bytes(tokens)).hexdigest()


def _little_endian(tokens: TokenIds[int]) -> TokenIds[int]:
    if sys.byteorder == "little":
        return tokens
    swapped = array("I", tokens)
    swapped.byteswap()
    return swapped
