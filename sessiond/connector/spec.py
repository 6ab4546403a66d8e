"""The offloading spec that vLLM loads by name (``spec_module_path``)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from sessiond.connector.copy_worker import HostCopyWorker
from sessiond.connector.manager import SessionOffloadingManager

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker


class SessionOffloadingSpec(TieringOffloadingSpec):
    """vLLM's tiering with our manager and, on the CPU platform, our copy worker."""

    _host_worker: HostCopyWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """Return our manager over vLLM's own primary tier and our tier."""
        manager = super().get_manager()
        if isinstance(manager, SessionOffloadingManager):
            return manager
        assert isinstance(manager, TieringOffloadingManager)
        self._manager = SessionOffloadingManager(manager.primary_tier, manager.secondary_tiers)
        self._unlink_region()
        return self._manager

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

    @property
    def region_fd(self) -> int:
        """The scheduler's descriptor of the RAM tier's shared memory."""
        region = self._scheduler_mmap
        assert region is not None
        assert region.fd is not None
        return region.fd

    def _unlink_region(self) -> None:
        # Workers map the region first, the scheduler last: from here on nobody opens it by
        # name, and without a name it cannot outlive its processes, however they end.
        region = self._scheduler_mmap
        if region is not None:
            with contextlib.suppress(FileNotFoundError):
                Path(region.mmap_path).unlink()
