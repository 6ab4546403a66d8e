"""vLLM's tiering manager, with what admission and suspends need (design §3, rules 3 to 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import LookupResult
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

from sessiond.connector.guard import guarded
from sessiond.connector.tier import SnapshotTier

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.v1.kv_offload.base import OffloadKey, PrepareStoreOutput, ReqContext


class SessionOffloadingManager(TieringOffloadingManager):
    """Keeps admitted chunks in RAM until they are copied, and trims what a suspend stores."""

    def __init__(self, primary_tier: Any, secondary_tiers: list[Any]) -> None:
        super().__init__(primary_tier, secondary_tiers)
        (self._tier,) = (tier for tier in secondary_tiers if isinstance(tier, SnapshotTier))
        self._pinned: dict[str, set[OffloadKey]] = {}

    @property
    def snapshot_tier(self) -> SnapshotTier:
        """Our cold tier."""
        return self._tier

    def lookup(
        self,
        key: OffloadKey,
        req_context: ReqContext,
        *,
        exclude_tier_idx: int | None = None,
    ) -> LookupResult:
        """As vLLM's, but a chunk that only waits for a slot of the RAM tier is no miss."""
        result = super().lookup(key, req_context, exclude_tier_idx=exclude_tier_idx)
        allowed = req_context.load_tier_filter.allows(self._tier.medium, self._tier.locality)
        if result is LookupResult.MISS and allowed and self._tier.offers(key, req_context):
            return LookupResult.RETRY
        return result

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """As vLLM's; of a suspend, only what is not durable yet and fits, in the given order."""
        if self._tier.is_suspend(req_context):
            return self._prepare_suspend(keys, req_context)
        output = super().prepare_store(keys, req_context)
        if output is None and self._tier.windowed:
            # vLLM would try again later, when windows have moved on: it frees a window's blocks
            # one by one, and takes a chunk for whole while its last block is there.
            return super().prepare_store([], req_context)
        return output

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """As vLLM's; the chunks need no more protection."""
        super().complete_load(keys, req_context)
        self._unpin(req_context)
        self._tier.in_vram(req_context)

    def on_request_finished(
        self, req_context: ReqContext, *, exclude_tier_idx: int | None = None
    ) -> None:
        """As vLLM's; whatever the request still protects is let go."""
        self._unpin(req_context)
        super().on_request_finished(req_context, exclude_tier_idx=exclude_tier_idx)

    def reset_cache(self) -> None:
        """As vLLM's, which drops every chunk, protected or not."""
        super().reset_cache()
        # Afterwards: the reset itself still completes promotions, which are pinned.
        self._pinned.clear()

    def _prepare_suspend(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        wanted = self._tier.storable(keys, req_context)
        while True:
            output = super().prepare_store(wanted, req_context)
            if output is not None or len(wanted) < 2:
                return output
            wanted = self._tier.first_half(wanted, req_context)

    def _complete_promotion(self, job_metadata: Any, completed_job: Any) -> None:
        super()._complete_promotion(job_metadata, completed_job)
        self._pin(job_metadata.transfer_job.keys, job_metadata.transfer_job.req_context)

    @guarded(None)
    def _pin(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        if not self._tier.keeps_promoted(req_context):
            return
        pinned = self._pinned.setdefault(req_context.req_id, set())
        for key in keys:
            ready = self.primary_tier.lookup(key, req_context) is LookupResult.HIT
            if ready and key not in pinned:
                self.primary_tier.prepare_read([key], req_context)
                pinned.add(key)

    @guarded(None)
    def _unpin(self, req_context: ReqContext) -> None:
        # Of this request, and of any that is over and was not let go, should that have failed.
        over = [
            req_id
            for req_id in self._pinned
            if req_id == req_context.req_id or req_id not in self._req_state
        ]
        for req_id in over:
            self.primary_tier.complete_read(self._pinned.pop(req_id), req_context)
