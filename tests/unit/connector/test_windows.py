"""Which sliding windows chunks can hold, and what vLLM keeps of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

from sessiond.connector.windows import keeps_replies, unfit_windows

FULL = kv.FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)


def window(tokens: int, block_tokens: int = 16) -> KVCacheSpec:
    return kv.SlidingWindowSpec(
        block_size=block_tokens,
        num_kv_heads=2,
        head_size=64,
        dtype=torch.bfloat16,
        sliding_window=tokens,
    )


def groups(*specs: KVCacheSpec) -> KVCacheConfig:
    described = [KVCacheGroupSpec(["layer"], spec) for spec in specs]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=described)


def config(interval_tokens: int | None = 0, ranks: int = 1, **extra: int) -> Any:  # noqa: ANN401 - stands for vLLM's
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=ranks),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        cache_config=SimpleNamespace(prefix_cache_retention_interval=interval_tokens),
    )


@pytest.mark.parametrize(
    ("tokens", "chunk_tokens", "fits"),
    [
        (1024, 256, True),
        (1024, 16, True),
        (128, 256, False),  # vLLM would keep half a chunk
        (128, 128, True),
        (1000, 256, False),
        (1000, 16, True),
        (1025, 256, False),  # vLLM keeps 1024 tokens, and asks for five chunks
        (1008, 256, False),
        (1009, 16, False),
    ],
)
def test_a_window_is_a_whole_number_of_chunks(tokens: int, chunk_tokens: int, fits: bool) -> None:  # noqa: FBT001 - of a table
    unfit = unfit_windows(config(block_size=chunk_tokens), groups(FULL, window(tokens)))
    assert (not unfit) == fits
    assert fits or f"a window of {tokens} tokens" in unfit


@pytest.mark.parametrize(
    ("tokens", "advice"),
    [(128, "start it with --chunk-tokens 128"), (1000, "--chunk-tokens 144"), (1025, "no size")],
)
def test_a_size_that_fits_is_named(tokens: int, advice: str) -> None:
    assert advice in unfit_windows(config(block_size=256), groups(FULL, window(tokens)))


def test_chunks_may_be_told_in_blocks() -> None:
    assert unfit_windows(config(blocks_per_chunk=64), groups(window(1024))) == ""
    assert "whole number of chunks of 2048" in unfit_windows(
        config(blocks_per_chunk=128), groups(window(1024))
    )


def test_other_blocks_and_ranks_are_refused_by_name() -> None:
    sizes = groups(FULL, window(1024, block_tokens=32))
    assert "different sizes" in unfit_windows(config(), sizes)
    assert "several ranks" in unfit_windows(config(ranks=2), groups(FULL, window(1024)))
    assert unfit_windows(config(ranks=2), groups(FULL, replace(FULL))) == ""


@pytest.mark.parametrize(
    ("interval_tokens", "kept"), [(0, False), (None, True), (16, True), (256, True), (512, False)]
)
def test_vllm_keeps_replies_where_windows_meet(interval_tokens: int | None, kept: bool) -> None:  # noqa: FBT001 - of a table
    assert keeps_replies(config(interval_tokens), groups(FULL, window(256))) == kept
    assert keeps_replies(config(interval_tokens), groups(FULL))
