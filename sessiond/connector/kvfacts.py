"""What decides the bytes of KV beside the model: kinds of groups, scales, attention, ranks."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import SlidingWindowSpec

from sessiond.connector.plain import plain
from sessiond.domain.canonical import JsonValue, json_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from sessiond.connector.layers import Layers

#: How dtypes are called whose numbers mean nothing without a scale.
_SCALED = ("fp8", "int8", "int4", "nvfp4", "turboquant", "ultraquant")
_SPECULATION = ("method", "model", "revision", "quantization", "num_speculative_tokens")


def kv_groups(kv_cache_config: KVCacheConfig) -> list[JsonValue]:
    """Return the KV groups in their order: kinds, layers and sizes."""
    return [_group(group) for group in kv_cache_config.kv_cache_groups]


def kv_scales(vllm_config: VllmConfig, kv_dtype: str, layers: Layers) -> dict[str, JsonValue]:
    """Return what turns the numbers of a quantized KV cache into K and V.

    The scales of each layer are those that its worker has loaded, or the 1.0 that vLLM takes
    where a checkpoint has none. Scales that it finds for each token lie in the KV pages.
    """
    if not is_scaled(kv_dtype):
        return {"kind": "none"}
    scales: dict[str, JsonValue] = {
        name: [[repr(number) for number in numbers] for numbers in layer.scales]
        for name, layer in layers.items()
    }
    return {
        "kind": kv_dtype,
        "number": str(current_platform.fp8_dtype()).removeprefix("torch."),
        "unscaled_layers": sorted(vllm_config.cache_config.kv_cache_dtype_skip_layers),
        "layers_digest": json_digest(scales).hex(),
    }


def is_scaled(kv_dtype: str) -> bool:
    """Whether KV of this data type needs scales to be read."""
    return kv_dtype.startswith(_SCALED)


def half_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Return in runs of how many bytes K and V alternate, K first; 0 where that is not known.

    Only for 16-bit numbers, and only on a CPU, where each head of a block has all its K before
    all its V. Nothing but the measured error of lossy storage depends on it.
    """
    if current_platform.device_type != "cpu":
        return 0
    sizes = {_half_bytes(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups}
    return sizes.pop() if len(sizes) == 1 else 0


def _half_bytes(spec: Any) -> int:
    heads, size = getattr(spec, "num_kv_heads", 0), getattr(spec, "head_size", 0)
    half = 2 * int(spec.block_size) * int(size)
    # Latent attention has no V, and others may have V of another size, or scales between.
    return half if spec.page_size_bytes == 2 * heads * half else 0


def attention(layers: Layers) -> dict[str, JsonValue]:
    """Return what decides how attention lays K and V out inside a page."""
    device = current_platform.device_type
    # On CPUs, vLLM packs K for the instruction set that it finds.
    features: dict[str, JsonValue] = {
        "amx": torch.cpu._is_amx_tile_supported(),  # noqa: SLF001 - what vLLM itself asks
        "avx512": torch.cpu._is_avx512_supported(),  # noqa: SLF001 - what vLLM itself asks
        "machine": platform.machine(),
    }
    return {
        "device": device,
        "backends": sorted({layer.backend for layer in layers.values()}),
        "layers_digest": json_digest({name: each.backend for name, each in layers.items()}).hex(),
        "instruction_set": features if device == "cpu" else {},
    }


def parallel(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    """Return how the model is split, and in which order the ranks lie in a chunk."""
    sizes = vllm_config.parallel_config
    return {
        "tp": sizes.tensor_parallel_size,
        "pp": sizes.pipeline_parallel_size,
        "pcp": sizes.prefill_context_parallel_size,
        "dcp": sizes.decode_context_parallel_size,
        "cp_interleave": sizes.cp_kv_cache_interleave_size,
        "rank_order": "rank",
    }


def speculation(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    """Return the configuration of speculative decoding: its draft has KV, too."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return {"method": "none"}
    return {name: plain(getattr(speculative, name, None)) for name in _SPECULATION}


def _group(group: Any) -> dict[str, JsonValue]:
    spec = group.kv_cache_spec
    return {
        "kind": type(spec).__name__,
        "layers": len(group.layer_names),
        "layers_digest": json_digest(list(group.layer_names)).hex(),
        "window_tokens": spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0,
        "block_tokens": spec.block_size,
        "page_bytes": spec.page_size_bytes,
        "details": plain(spec),
    }
