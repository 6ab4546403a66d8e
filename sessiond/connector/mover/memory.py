"""What the mover may keep in memory beside the shared region, and who gets how much of it.

Everything that grows has a share: scratch memory per thread (a chunk is never in memory twice
in the same form), the snapshots that are open, and the rest: the interpreter with its libraries
and what lies between threads. So the session's length does not matter, only the chunk's.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from sessiond.domain.errors import ConfigurationError
from sessiond.store.buffers import HUGE_PAGE_BYTES
from sessiond.store.codecchoice import TRIAL_BYTES
from sessiond.store.codecs import payload_bound_bytes
from sessiond.store.format import align_up
from sessiond.store.reading import DEFAULT_PACE, ReadPace

#: The interpreter, NumPy, Numba's compiler and small things; about 70 MiB were measured.
_BASE_BYTES = 96 << 20
#: Open snapshots and suspends: records, tokens, indexes.
_PLANS_BYTES = 32 << 20
#: A thread's stack, its (de)compressor's state and what the allocator keeps.
_THREAD_BYTES = 3 << 20
_SMALLEST_RUN_BYTES = 1 << 20
#: What one chunk of an open snapshot, or of a suspend, takes: record, index entry, digests.
_PLAN_CHUNK_BYTES = 1500
_PLAN_BYTES = 64 << 10


@dataclass(frozen=True)
class Shares:
    """How the mover works within its bound."""

    read_threads: int
    write_threads: int
    pace: ReadPace
    plans_bytes: int = _PLANS_BYTES


def divide(limit_bytes: int, chunk_bytes: int, read_threads: int, write_threads: int) -> Shares:
    """Return the fastest way of working that stays below *limit_bytes*.

    :param read_threads: how many are wanted; fewer if their memory does not fit
    :param write_threads: the same
    :raises ConfigurationError: not even one of each fits; the text says how much is needed
    """
    shares = Shares(read_threads, write_threads, DEFAULT_PACE)
    while (needed := _needed_bytes(shares, chunk_bytes)) > limit_bytes:
        smaller = _smaller(shares)
        if smaller is None:
            raise ConfigurationError(
                f"Chunks of {chunk_bytes} bytes need at least mover_memory_bytes={needed} "
                f"({limit_bytes} are given). Give the mover more memory, or make chunks of fewer "
                "tokens."
            )
        shares = smaller
    return shares


def plan_bytes(chunks: int, token_bytes: int) -> int:
    """Return what an open snapshot or suspend of so many chunks takes."""
    return _PLAN_BYTES + chunks * _PLAN_CHUNK_BYTES + 2 * token_bytes


class PlanRoom:
    """The share of the plans: who opens one takes of it, who closes it gives back."""

    def __init__(self, size_bytes: int) -> None:
        self._free_bytes = size_bytes
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}

    def take(self, plan_id: int, size_bytes: int) -> bool:
        """Take room for a plan; ``False`` if there is not enough."""
        with self._lock:
            # One plan is always served: however long its session, there is no other way.
            if self._taken and size_bytes > self._free_bytes:
                return False
            self._free_bytes -= size_bytes
            self._taken[plan_id] = size_bytes
            return True

    def give_back(self, plan_id: int) -> None:
        """The plan is closed, or was never opened."""
        with self._lock:
            self._free_bytes += self._taken.pop(plan_id, 0)


def _smaller(shares: Shares) -> Shares | None:
    if shares.write_threads > 1 and shares.write_threads >= shares.read_threads:
        return replace(shares, write_threads=shares.write_threads - 1)
    if shares.read_threads > 1:
        return replace(shares, read_threads=shares.read_threads - 1)
    if shares.pace.ahead:
        return replace(shares, pace=replace(shares.pace, ahead=False))
    if shares.pace.run_bytes > _SMALLEST_RUN_BYTES:
        return replace(shares, pace=replace(shares.pace, run_bytes=shares.pace.run_bytes // 2))
    return None


def _needed_bytes(shares: Shares, chunk_bytes: int) -> int:
    frame = align_up(payload_bound_bytes(chunk_bytes))
    run = _huge(max(frame, shares.pace.run_bytes))
    reader = (2 if shares.pace.ahead else 1) * run + _huge(chunk_bytes) + _THREAD_BYTES
    # Beside the frame, half a chunk: a plane of it, or what was decoded again to measure a loss.
    writer = _huge(frame) + _huge(chunk_bytes // 2 + chunk_bytes // 64) + frame // 2 + _THREAD_BYTES
    threads = shares.read_threads * reader + shares.write_threads * writer
    return _BASE_BYTES + shares.plans_bytes + TRIAL_BYTES + threads


def _huge(size_bytes: int) -> int:
    return -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
