"""How fast this machine reads and decodes what lies on the store's device, in a moment."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from sessiond.store import layout
from sessiond.store.buffers import Scratch
from sessiond.store.codecs import Codec, Coder, payload_bound_bytes
from sessiond.store.fileio import DurableFile
from sessiond.store.reading import RUN_BYTES, read_blocks, use_direct_io

if TYPE_CHECKING:
    from sessiond.store.fileio import FileOps
    from sessiond.store.tree import Tree

_SIZE_BYTES: Final = 32 << 20
#: Of a chunk; more of them would say the same.
_DECODED_BYTES: Final = 4 << 20


def read_rate(tree: Tree, size_bytes: int = _SIZE_BYTES) -> float:
    """Return the stored bytes per second of reading and decoding, one after the other.

    :param size_bytes: of the temporary file; whole runs of 4 MiB
    :raises OSError: the file could not be written or read.
    """
    with tree.folder(layout.TMP) as tmp_fd, DurableFile(tree.ops, tmp_fd) as file:
        # Random: a device might be quicker with zeros.
        block = np.random.default_rng(0).bytes(RUN_BYTES)
        for offset in range(0, size_bytes, RUN_BYTES):
            file.write(block, offset)
        tree.ops.sync(file.fd)
        read_s = _read_s(tree.ops, file.fd, size_bytes)
    return 1.0 / (read_s / size_bytes + _decode_s_per_byte())


def _read_s(ops: FileOps, fd: int, size_bytes: int) -> float:
    use_direct_io(ops, fd)
    scratch = Scratch()
    scratch.get(RUN_BYTES)
    began_s = perf_counter()
    for offset in range(0, size_bytes, RUN_BYTES):
        read_blocks(ops, fd, scratch, offset, RUN_BYTES)
    return max(1e-6, perf_counter() - began_s)


def _decode_s_per_byte() -> float:
    """Return the seconds for each stored byte of KV in 16-bit items."""
    values = np.random.default_rng(0).standard_normal(_DECODED_BYTES // 2, np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    coder, best_s = Coder(), math.inf
    codec, stored = coder.encode(Codec.PLANAR_ZSTD, raw, payload)
    out = np.empty_like(raw)
    for _ in range(2):  # the first pass pays for memory as well
        began_s = perf_counter()
        coder.decode(codec, payload[:stored], len(raw)).copy_to(out)
        best_s = min(best_s, perf_counter() - began_s)
    return max(1e-12, best_s / stored)
