"""vLLM's tiering as it is, and on the CPU platform with our copy worker.

``sessiond bench resume`` runs vLLM's own ``fs`` tier with it, beside ours over the same copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from sessiond.connector.copy_worker import HostCopyWorker

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker


class HostTieringSpec(TieringOffloadingSpec):
    """vLLM's own spec, which has no copy worker for the CPU platform."""

    _host_worker: HostCopyWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the copy worker: vLLM's own, except on the CPU platform."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._host_worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._host_worker = HostCopyWorker(kv_caches, self.blocks_per_chunk, region)
        return self._host_worker
