"""vLLM's own tiering manager over our tier and a real mover, with a hash that always collides.

Only the scheduler is played. Importing this imports vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager

from sessiond.connector.limits import Limits
from sessiond.connector.manager import SessionOffloadingManager
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.tier import SnapshotTier
from sessiond.domain.tokens import TokenIds
from sessiond.testing.fake_scheduler import FakeScheduler
from sessiond.testing.mover_rig import REGION_CHUNKS, MoverRig
from sessiond.testing.snapshots import CHUNK_BYTES, CHUNK_TOKENS

_PATIENCE_S = 30.0
_LIMITS = Limits(
    chunk_tokens=CHUNK_TOKENS,
    ram_chunks=REGION_CHUNKS,
    plan_deadline_s=_PATIENCE_S,
    job_deadline_s=_PATIENCE_S,
    hold_deadline_s=2 * _PATIENCE_S,
)
_UNSETTLED = frozenset({LookupResult.HIT_PENDING, LookupResult.RETRY})


class _Region:
    """The RAM tier's memory, as vLLM's manager asks for it."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def create_kv_memoryview(self) -> memoryview:
        return self._memory.cast("B", (REGION_CHUNKS, CHUNK_BYTES))


class Colliding:
    """One engine in which the chunks of all prompts have the same keys.

    :param chunks: of each prompt
    """

    def __init__(self, rig: MoverRig, chunks: int) -> None:
        assert isinstance(rig.link, MoverClient)
        link = rig.link
        self._rig = rig
        self._scheduler = FakeScheduler(time, limits=_LIMITS, start_mover=lambda: link)
        self._keys = [make_offload_key(b"%032d" % chunk, 0) for chunk in range(chunks)]
        self.forget_ram()

    def forget_ram(self) -> None:
        """Begin with an empty RAM tier."""
        region: Any = _Region(self._rig.region)  # all that vLLM needs of its own
        tier = SnapshotTier(None, region.create_kv_memoryview(), "SnapshotTier")
        tier.attach(self._scheduler.coordinator)
        primary = CPUPrimaryTierOffloadingManager(REGION_CHUNKS, region)
        self._manager = SessionOffloadingManager(primary, [tier])

    def arrive(self, session: str, tokens: TokenIds[int]) -> ReqContext:
        """Let a turn of a session arrive, and wait until its snapshot is open."""
        ticket = self._scheduler.ticket(session=session, generation=1)
        request_id = self._scheduler.arrive(ticket, tokens)
        context = ReqContext(request_id)
        for chunk, key in enumerate(self._keys):
            context.set_offload_key_position(key, (chunk + 1) * CHUNK_TOKENS)
        self._manager.on_new_request(context)
        _until(lambda: self._scheduler.may_match(request_id))
        return context

    def found(self, context: ReqContext) -> list[bool]:
        """Look a request's chunks up until each of them is there, or not."""
        results: list[LookupResult] = []

        def is_settled() -> bool:
            results[:] = [self._manager.lookup(key, context) for key in self._keys]
            self._manager.on_schedule_end(ScheduleEndContext([], []))
            return not _UNSETTLED & set(results)

        _until(is_settled)
        return [result is LookupResult.HIT for result in results]

    def loaded(self, context: ReqContext, chunk: int) -> bytes:
        """Return what vLLM copies into VRAM for a chunk that was found."""
        spec = self._manager.prepare_load([self._key(chunk)], context)
        assert isinstance(spec, CPULoadStoreSpec)
        return self._rig.slot(int(spec.chunk_ids[0]))

    def _key(self, chunk: int) -> OffloadKey:
        return self._keys[chunk]


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
