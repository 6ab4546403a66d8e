"""The copy worker over pages of every shape that a kind of KV may have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from sessiond.connector.copy_worker import HostCopyWorker
from sessiond.domain.ids import new_hex_id

BLOCKS = 8
CHUNKS = 4
ROW_ALIGNMENT_BYTES = 4096


@dataclass(frozen=True)
class Shape:
    """How an engine lays its KV out.

    :param page_bytes: of each tensor
    :param groups: for each group, its layers: the tensor and how many bytes of a page it uses
    :param gap_bytes: between the pages of one tensor
    """

    page_bytes: tuple[int, ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]
    blocks_per_chunk: int = 1
    gap_bytes: int = 0


SHAPES = {
    "full attention": Shape((4096, 4096), (((0, 4096), (1, 4096)),)),
    "several blocks in a chunk": Shape((2048, 2048), (((0, 2048), (1, 2048)),), 3),
    "latent vectors": Shape((576 * 2 * 16,), (((0, 576 * 2 * 16),),)),
    "8-bit numbers, odd sizes": Shape((1152, 333), (((0, 1152), (1, 333)),), 2),
    "padded pages": Shape((4096,), (((0, 4000),),), 2),
    "pages of a packed block": Shape((1024,), (((0, 1024),),), gap_bytes=512),
    "groups that share a tensor": Shape((4096,), (((0, 4096),), ((0, 2048),)), 2),
}


@dataclass
class Rig:
    """A worker over memory with random content."""

    shape: Shape
    worker: HostCopyWorker
    device: list[torch.Tensor]

    def store(self, group: int, blocks: list[int], chunks: list[int], skip: int = 0) -> None:
        assert self.worker.submit_store(1, self._blocks(group, blocks, skip), _chunks(chunks))
        self._done(blocks)

    def load(self, group: int, blocks: list[int], chunks: list[int], skip: int = 0) -> None:
        assert self.worker.submit_load(1, _chunks(chunks), self._blocks(group, blocks, skip))
        self._done(blocks)

    def pages(self, group: int, blocks: list[int]) -> list[bytes]:
        """Return what the layers of a group have in these blocks."""
        return [
            self.device[tensor][block, :size].numpy().tobytes()
            for tensor, size in self.shape.groups[group]
            for block in blocks
        ]

    def scramble(self) -> None:
        for tensor in self.device:
            tensor.random_(-128, 128)

    def _blocks(self, group: int, blocks: list[int], skip: int) -> GPULoadStoreSpec:
        count = len(self.shape.groups)
        sizes = [len(blocks) if at == group else 0 for at in range(count)]
        firsts = [skip if at == group else 0 for at in range(count)]
        return GPULoadStoreSpec(blocks, sizes, firsts)

    def _done(self, blocks: list[int]) -> None:
        (result,) = self.worker.get_finished()
        assert result.success
        assert blocks
        assert result.transfer_size


def _chunks(numbers: list[int]) -> BlockIDsLoadStoreSpec:
    return BlockIDsLoadStoreSpec(numbers)


@pytest.fixture
def new_rig() -> Iterator[Callable[[Shape], Rig]]:
    with ExitStack() as closing:

        def make(shape: Shape) -> Rig:
            device = [
                torch.empty((BLOCKS, size + shape.gap_bytes), dtype=torch.int8)[:, :size]
                for size in shape.page_bytes
            ]
            row_bytes = sum(shape.page_bytes) * shape.blocks_per_chunk
            row_bytes += -row_bytes % ROW_ALIGNMENT_BYTES
            region = SharedOffloadRegion(
                engine_id=f"test-{new_hex_id()}",
                num_chunks=CHUNKS,
                rank=0,
                kv_bytes_per_chunk=row_bytes,
                cpu_page_size=row_bytes,
            )
            os.unlink(region.mmap_path)  # noqa: PTH108 - gone even if the test is killed
            caches = CanonicalKVCaches(
                [
                    CanonicalKVCacheTensor(tensor, size)
                    for tensor, size in zip(device, shape.page_bytes, strict=True)
                ],
                [[CanonicalKVCacheRef(*layer) for layer in group] for group in shape.groups],
            )
            worker = HostCopyWorker(caches, shape.blocks_per_chunk, region)
            closing.callback(worker.shutdown)
            rig = Rig(shape, worker, device)
            rig.scramble()
            return rig

        yield make


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_what_was_stored_comes_back_elsewhere(
    new_rig: Callable[[Shape], Rig], shape: Shape
) -> None:
    rig = new_rig(shape)
    per_chunk = shape.blocks_per_chunk
    for group in range(len(shape.groups)):
        blocks = list(range(2 * per_chunk))
        stored = rig.pages(group, blocks)
        rig.store(group, blocks, [3, 1])
        rig.scramble()
        elsewhere = list(reversed(range(BLOCKS)))[: 2 * per_chunk]
        assert rig.pages(group, elsewhere) != stored

        rig.load(group, elsewhere, [3, 1])

        assert rig.pages(group, elsewhere) == stored


def test_a_chunk_can_be_stored_and_loaded_in_parts(new_rig: Callable[[Shape], Rig]) -> None:
    rig = new_rig(SHAPES["several blocks in a chunk"])
    stored = rig.pages(0, [0, 1, 2, 3, 4, 5])
    rig.store(0, [0, 1], [2])
    rig.store(0, [2, 3, 4, 5], [2, 0], skip=2)
    rig.scramble()

    rig.load(0, [3, 4, 5, 6, 7], [2, 0], skip=1)

    assert rig.pages(0, [3, 4, 5, 6, 7]) == [
        page for first in (0, 6) for page in stored[first + 1 : first + 6]
    ]


def test_other_chunks_and_blocks_stay_as_they_are(new_rig: Callable[[Shape], Rig]) -> None:
    rig = new_rig(SHAPES["full attention"])
    rig.store(0, [0, 1, 2, 3], [0, 1, 2, 3])
    before = [np.copy(tensor.numpy()) for tensor in rig.device]
    rig.scramble()
    after = [np.copy(tensor.numpy()) for tensor in rig.device]

    rig.load(0, [6], [2])

    for tensor, old, scrambled in zip(rig.device, before, after, strict=True):
        scrambled[6] = old[2]
        assert np.array_equal(tensor.numpy(), scrambled)


def test_nothing_of_an_earlier_chunk_is_left_in_a_smaller_one(
    new_rig: Callable[[Shape], Rig],
) -> None:
    shape = Shape((4096, 4096), (((0, 4096), (1, 4096)), ((0, 4000),)))
    rig = new_rig(shape)
    rig.store(0, [1], [2])
    rig.store(1, [3], [2])

    row = [host[2].tobytes() for host in rig.worker._host]

    assert row == [rig.pages(1, [3])[0] + bytes(96), bytes(4096)]
