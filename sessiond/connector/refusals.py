"""Engines that sessiond refuses at start, each with its reason.

What has no golden test (greedy tokens without interruption = after suspend, SIGKILL, resume) is
refused by kind: a wrong token is worse than no snapshot.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sessiond.connector.plain import plain
from sessiond.connector.versions import require_supported_vllm
from sessiond.connector.windows import unfit_windows
from sessiond.domain.architectures import kind_of, refused_kinds
from sessiond.domain.errors import UnsupportedEngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from sessiond.domain.canonical import JsonValue

#: Load formats that take the weights from the files that are digested.
_LOAD_FORMATS = frozenset(
    {"auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"}
)
#: vLLM looks its own caches up by these hashes before it asks us.
_PROOF_HASHES = frozenset({"sha256", "sha256_cbor"})


def require_supported_engine(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Check everything that is known before the connector is built.

    :raises UnsupportedEngineError: this engine has not been proved to restore the right KV
    """
    require_supported_vllm()
    for problem in (
        _groups(kv_cache_config),
        unfit_windows(vllm_config, kv_cache_config),
        _parallel(vllm_config.parallel_config),
        _weights(vllm_config),
        _caching(vllm_config),
    ):
        if problem:
            raise UnsupportedEngineError(f"sessiond does not support this engine: {problem}")


def _groups(kv_cache_config: KVCacheConfig) -> str:
    groups = [_described(group) for group in kv_cache_config.kv_cache_groups]
    refused = refused_kinds([kind_of(group) for group in groups])
    if refused:
        return " ".join(f"{known.kind}: {known.what}. {known.sentence}" for known in refused)
    if len({str(group.get("dtype")) for group in groups}) > 1:
        return "its KV groups keep numbers of different types."
    return ""


def _described(group: Any) -> Mapping[str, JsonValue]:
    """Return a KV group as its fingerprint has it, and what is unusual about the group itself."""
    about = plain(group)
    assert isinstance(about, dict)
    del about["type"], about["layer_names"]
    spec = about.pop("kv_cache_spec")
    assert isinstance(spec, dict)
    return {**about, **spec}


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
    # Such as Ultravox's text_model_id: another checkpoint, of no certain revision.
    config = vars(getattr(vllm_config.model_config, "hf_config", object))
    elsewhere = sorted(name for name in config if name.endswith("model_id") and config[name])
    if elsewhere:
        return f"its weights come from other checkpoints as well ({', '.join(elsewhere)})."
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
    cache = vllm_config.cache_config
    if not cache.enable_prefix_caching:
        return "prefix caching is off, so restored KV would never be found."
    if cache.prefix_caching_hash_algo not in _PROOF_HASHES:
        return (
            f"prefix caching with {cache.prefix_caching_hash_algo!r} can take one prompt's KV for "
            "another's: such hashes can be made to collide on purpose. "
            "Use --prefix-caching-hash-algo sha256."
        )
    return ""
