"""Choosing a codec by what it costs and saves on this machine now.

Compression makes files smaller, and a restore too if the device is slower than the decoder. It
costs CPU time on both ways. So each codec that applies is tried on a sample of the bytes
themselves, and judged with the rates that the device has shown.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sessiond.store.codecs import ByteArray, Codec, payload_bound_bytes, thread_coder

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Speeds:
    """How fast bytes move on this machine; until they were measured, an NVMe drive's."""

    read_bytes_s: float = 3e9
    write_bytes_s: float = 3e9
    read_threads: int = 2  #: that decode at once
    write_threads: int = 2  #: that encode at once


@dataclass(frozen=True)
class CodecTrial:
    """What one codec costs and saves on this machine now."""

    codec: Codec
    stored_share: float  #: stored bytes / raw bytes
    encode_bytes_s: float  #: raw bytes a second, one thread
    decode_bytes_s: float  #: raw bytes a second, one thread, until the bytes lie in a buffer

    def restore_s_per_byte(self, speeds: Speeds) -> float:
        """Return the time that restoring a raw byte takes, reading and decoding overlapped."""
        decode_bytes_s = self.decode_bytes_s * speeds.read_threads
        return max(self.stored_share / speeds.read_bytes_s, 1 / decode_bytes_s)

    def suspend_s_per_byte(self, speeds: Speeds) -> float:
        """Return the time that suspending a raw byte takes, encoding and writing overlapped."""
        encode_bytes_s = self.encode_bytes_s * speeds.write_threads
        return max(self.stored_share / speeds.write_bytes_s, 1 / encode_bytes_s)


#: A restore, for which an agent waits, may take this much longer for the sake of a smaller file.
_RESTORE_PATIENCE = 1.5
#: The same for a suspend, for which nobody waits.
_SUSPEND_PATIENCE = 4.0
#: A codec that saves less than this share is not worth its work.
_MAX_STORED_SHARE = 0.95
# A sample is taken from several places: layers differ.
_SAMPLE_PARTS = 8
_SAMPLE_PART_BYTES = 128 << 10
#: What a trial takes at most, beside a coder's own memory.
TRIAL_BYTES = 4 * _SAMPLE_PARTS * _SAMPLE_PART_BYTES


def choose_codec(raw: memoryview, *, item_bytes: int = 2, speeds: Speeds | None = None) -> Codec:
    """Return the codec that pays for chunks like *raw* on this machine now.

    The smallest one that does not make a restore noticeably slower, nor a suspend out of
    proportion; ``RAW`` if none pays.

    :param item_bytes: size of the numbers that the chunk is made of
    :param speeds: as measured; ``None``: assumed
    """
    speeds = speeds or Speeds()
    plain, *trials = try_codecs(raw, item_bytes=item_bytes)
    restore_limit = _RESTORE_PATIENCE * plain.restore_s_per_byte(speeds)
    suspend_limit = _SUSPEND_PATIENCE * plain.suspend_s_per_byte(speeds)
    paying = [
        trial
        for trial in trials
        if trial.stored_share <= _MAX_STORED_SHARE
        and trial.restore_s_per_byte(speeds) <= restore_limit
        and trial.suspend_s_per_byte(speeds) <= suspend_limit
    ]
    return min(paying, key=lambda trial: trial.stored_share, default=plain).codec


def try_codecs(raw: memoryview, *, item_bytes: int = 2) -> list[CodecTrial]:
    """Measure every codec that applies to items of *item_bytes* on a sample; ``RAW`` first."""
    sample = _sample(np.frombuffer(raw, np.uint8))
    candidates = [Codec.RAW, Codec.PLANAR_ZSTD if item_bytes == 2 else Codec.ZSTD]
    return [_trial(codec, sample) for codec in candidates]


def _sample(raw: ByteArray) -> ByteArray:
    if len(raw) <= _SAMPLE_PARTS * _SAMPLE_PART_BYTES:
        return raw
    step = len(raw) // _SAMPLE_PARTS // 2 * 2  # items of two bytes stay whole
    starts = range(0, _SAMPLE_PARTS * step, step)
    return np.concatenate([raw[start : start + _SAMPLE_PART_BYTES] for start in starts])


def _trial(codec: Codec, raw: ByteArray) -> CodecTrial:
    coder = thread_coder()
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    out = np.empty_like(raw)
    used, stored = coder.encode(codec, raw, payload)  # warms memory and kernels
    encode_s = _seconds(lambda: coder.encode(codec, raw, payload))
    decode_s = _seconds(lambda: coder.decode(used, payload[:stored], len(raw)).copy_to(out))
    return CodecTrial(codec, stored / len(raw), len(raw) / encode_s, len(raw) / decode_s)


def _seconds(action: Callable[[], object], repeats: int = 3) -> float:
    """Return the best of a few runs, in CPU time: a busy moment must not decide."""
    best = math.inf
    for _ in range(repeats):
        started = time.thread_time()
        action()
        best = min(best, time.thread_time() - started)
    return max(best, 1e-9)  # the clock may not have moved for a small chunk
