"""The offloading spec that vLLM loads by name (``spec_module_path``)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

from sessiond.connector.hostspec import HostTieringSpec
from sessiond.connector.manager import SessionOffloadingManager

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingManager


class SessionOffloadingSpec(HostTieringSpec):
    """vLLM's tiering with our manager and, on the CPU platform, our copy worker."""

    def get_manager(self) -> OffloadingManager:
        """Return our manager over vLLM's own primary tier and our tier."""
        manager = super().get_manager()
        if isinstance(manager, SessionOffloadingManager):
            return manager
        assert isinstance(manager, TieringOffloadingManager)
        self._manager = SessionOffloadingManager(manager.primary_tier, manager.secondary_tiers)
        self._unlink_region()
        return self._manager

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
