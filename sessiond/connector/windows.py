"""Sliding windows that chunks can hold whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import SlidingWindowSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def unfit_windows(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """Return why chunks do not fit the windows of this engine's groups; empty if they do.

    vLLM frees a window's blocks one by one. The oldest chunk of a window must be whole all the
    same: a later, shorter context may have it in the middle of its window.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    windowed = [spec for spec in specs if isinstance(spec, SlidingWindowSpec)]
    if not windowed:
        return ""
    if len({spec.block_size for spec in specs}) > 1:
        return "its KV groups have blocks of different sizes."
    if vllm_config.parallel_config.world_size > 1:
        return "sliding windows over several ranks have no golden test."
    block_tokens = windowed[0].block_size
    chunk_tokens = _chunk_tokens(vllm_config, block_tokens)
    unfit = [spec.sliding_window for spec in windowed if not _fits(spec, chunk_tokens)]
    if not unfit:
        return ""
    smaller = range(chunk_tokens - chunk_tokens % block_tokens, 0, -block_tokens)
    fitting = [size for size in smaller if all(_fits(spec, size) for spec in windowed)]
    advice = f"start it with --chunk-tokens {fitting[0]}" if fitting else "no size of chunks is"
    return (
        f"a window of {unfit[0]} tokens is no whole number of chunks of {chunk_tokens} tokens; "
        f"{advice}."
    )


def _fits(spec: SlidingWindowSpec, chunk_tokens: int) -> bool:
    # vLLM keeps the blocks of the newest window - 1 tokens, and asks for whole chunks.
    kept_tokens = -(-(spec.sliding_window - 1) // spec.block_size) * spec.block_size
    asked_tokens = -(-spec.sliding_window // chunk_tokens) * chunk_tokens
    return kept_tokens == asked_tokens


def keeps_replies(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> bool:
    """Whether vLLM finds the KV of generated tokens again, and not only that of prompts."""
    interval_tokens = vllm_config.cache_config.prefix_cache_retention_interval
    specs = (group.kv_cache_spec for group in kv_cache_config.kv_cache_groups)
    windowed = [spec for spec in specs if isinstance(spec, SlidingWindowSpec)]
    if not windowed or interval_tokens is None:
        return True
    # It keeps a window at each multiple of the interval: all blocks, if windows meet.
    return 0 < interval_tokens <= min(spec.sliding_window for spec in windowed)


def _chunk_tokens(vllm_config: VllmConfig, block_tokens: int) -> int:
    transfer = vllm_config.kv_transfer_config
    extra = transfer.kv_connector_extra_config if transfer is not None else {}
    if "block_size" in extra:
        return int(extra["block_size"])
    return int(extra.get("blocks_per_chunk", 1)) * block_tokens
