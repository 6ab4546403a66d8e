"""Engines that sessiond refuses at start, each with its reason.

What has no golden test (greedy tokens without interruption = after suspend, SIGKILL, resume) is
refused by kind: a wrong token is worse than no snapshot.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

from sessiond.connector.versions import require_supported_vllm
from sessiond.domain.errors import UnsupportedEngineError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

#: Load formats that take the weights from the files that are digested.
_LOAD_FORMATS = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"}
)


def require_supported_engine(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Check everything that is known before the connector is built.

    :raises UnsupportedEngineError: this engine has not been proved to restore the right KV
    """
    require_supported_vllm()
    for problem in (
        _groups(kv_cache_config),
        _parallel(vllm_config.parallel_config),
        _weights(vllm_config),
        _caching(vllm_config),
    ):
        if problem:
            raise UnsupportedEngineError(f"sessiond does not support this engine: {problem}")


def _groups(kv_cache_config: KVCacheConfig) -> str:
    groups = kv_cache_config.kv_cache_groups
    kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
    full = all(
        isinstance(group.kv_cache_spec, FullAttentionSpec)
        and not isinstance(group.kv_cache_spec, MLAAttentionSpec)
        for group in groups
    )
    if full and len(groups) == 1:
        return ""
    return f"its KV groups ({', '.join(kinds)}) have no golden test; full attention has one."


def _parallel(parallel: Any) -> str:
    sizes = {
        "data": parallel.data_parallel_size,
        "pipeline": parallel.pipeline_parallel_size,
        "prefill context": parallel.prefill_context_parallel_size,
        "decode context": parallel.decode_context_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1:
            return f"{name} parallelism has no golden test."
    if parallel.nnodes > 1:
        return "it spans several hosts."
    if parallel.enable_elastic_ep:
        return "elastic expert parallelism has no golden test."
    return ""


def _weights(vllm_config: VllmConfig) -> str:
    load_format = vllm_config.load_config.load_format
    if load_format not in _LOAD_FORMATS:
        return f"load format {load_format!r} takes weights from elsewhere than their files."
    if vllm_config.speculative_config is not None:
        return "speculative decoding has no golden test."
    return ""


def weights_may_change(vllm_config: VllmConfig) -> str:
    """Return how this engine's weights could change in place; empty if they cannot.

    Some of these ways (``collective_rpc``, ``update_weights``) reach no hook of a connector.
    """
    ways = (
        (os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"), "development mode"),
        (vllm_config.model_config.enable_sleep_mode, "sleep mode"),
        (vllm_config.weight_transfer_config is not None, "weight transfer"),
        (os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0") not in ("", "0"), "LoRA updates"),
    )
    return ", ".join(name for enabled, name in ways if enabled)


def _caching(vllm_config: VllmConfig) -> str:
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off, so restored KV would never be found."
    return ""
