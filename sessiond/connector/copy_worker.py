"""Copies KV between an engine on the CPU platform and the RAM tier.

vLLM ships copy workers for GPUs only; with this one the rest of its offloading stack runs, and
can be tested, on a CPU. Both sides are host memory, so a copy is done when it was submitted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

    Pages = NDArray[np.int8]


class HostCopyWorker(OffloadingWorker):
    """An offloading worker whose device memory is host memory.

    Layout (as vLLM's own GPU worker has it): a row of the region holds, for this worker, one
    cell per KV tensor; a cell holds ``blocks_per_chunk`` pages, one after the other.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: SharedOffloadRegion
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._device: list[Pages] = []
        self._host: list[Pages] = []
        for cache in kv_caches.tensors:
            page_bytes = cache.page_size_bytes
            self._device.append(cache.tensor.numpy())
            view = region.create_next_worker_view(page_bytes * blocks_per_chunk)
            self._host.append(view.numpy())
        self._page_bytes = [cache.page_size_bytes for cache in kv_caches.tensors]
        self._refs = kv_caches.group_data_refs
        every = range(len(kv_caches.tensors))
        self._unused = [set(every) - {ref.tensor_idx for ref in refs} for refs in self._refs]
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copy blocks of the engine into chunks of the RAM tier."""
        return self._copy(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copy chunks of the RAM tier into blocks of the engine."""
        return self._copy(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        """Return the copies that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Do nothing: a copy is done when it was submitted."""

    def shutdown(self) -> None:
        """Let go of the region, so that it can be unmapped."""
        self._device.clear()
        self._host.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, blocks: GPULoadStoreSpec, chunks: Any, *, to_host: bool) -> bool:
        assert isinstance(chunks, BlockIDsLoadStoreSpec)
        began_s = time.perf_counter()
        moved_bytes = 0
        block_at = 0
        chunk_at = 0
        for group, count in enumerate(blocks.group_sizes):
            if count == 0:
                continue
            skip = blocks.block_indices[group] % self._blocks_per_chunk
            used_chunks = -(-(skip + count) // self._blocks_per_chunk)
            group_blocks = blocks.block_ids[block_at : block_at + count]
            group_chunks = chunks.block_ids[chunk_at : chunk_at + used_chunks]
            moved_bytes += self._copy_group(
                group, group_blocks, group_chunks, skip, to_host=to_host
            )
            block_at += count
            chunk_at += used_chunks
        seconds = time.perf_counter() - began_s
        self._finished.append(
            TransferResult(job_id, success=True, transfer_size=moved_bytes, transfer_time=seconds)
        )
        return True

    def _copy_group(
        self,
        group: int,
        block_ids: NDArray[np.int32],
        chunk_ids: NDArray[np.int32],
        skip: int,
        *,
        to_host: bool,
    ) -> int:
        moved_bytes = 0
        if to_host:
            # A group with fewer layers than others leaves cells of its chunks unused. What another
            # tenant's chunk left there must not come into this one's snapshot.
            for tensor in self._unused[group]:
                self._host[tensor][np.unique(chunk_ids)] = 0
        for ref in self._refs[group]:
            device, host = self._device[ref.tensor_idx], self._host[ref.tensor_idx]
            page_bytes = self._page_bytes[ref.tensor_idx]
            size = ref.page_size_bytes
            # Block by block: fancy indexing copies several times slower (it gathers bytes).
            for at, block in enumerate(block_ids, skip):
                chunk = chunk_ids[at // self._blocks_per_chunk]
                start = at % self._blocks_per_chunk * page_bytes
                if to_host:
                    host[chunk, start : start + size] = device[block, :size]
                    host[chunk, start + size : start + page_bytes] = 0
                else:
                    device[block, :size] = host[chunk, start : start + size]
            moved_bytes += size * len(block_ids)
        return moved_bytes
