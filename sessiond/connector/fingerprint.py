"""Reads the fingerprint from the live engine's resolved configuration."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform

import sessiond
from sessiond.connector.digests import DigestCache, code_files, tokenizer_files, weight_files
from sessiond.connector.versions import vllm_version
from sessiond.domain.canonical import JsonValue, json_digest
from sessiond.domain.errors import UnsupportedEngineError
from sessiond.domain.fingerprint import CONNECTOR_FORMAT, Fingerprint

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


def read_fingerprint(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    spec: TieringOffloadingSpec,
    cache: DigestCache,
) -> Fingerprint:
    """Return every fact of design §6 that this engine has, resolved.

    :raises UnsupportedEngineError: the model's files cannot be found
    """
    model = vllm_config.model_config
    parallel = vllm_config.parallel_config
    download_folder = vllm_config.load_config.download_dir
    checkpoint = _local_path(model.model, model.revision, download_folder)
    model_folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    tokenizer = _local_path(str(model.tokenizer), model.tokenizer_revision, download_folder)
    tokenizer_folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    version = vllm_version()
    fields: dict[str, JsonValue] = {
        "weights_digest": cache.files_digest(weight_files(checkpoint), model_folder),
        "code_digest": cache.files_digest(code_files(model_folder), model_folder),
        "model_config_digest": _text_config_digest(model.hf_text_config, model.max_model_len),
        "quantization": model.quantization,
        "model_dtype": _name(model.dtype),
        "kv_dtype": spec.config.model.dtype,
        "kv_groups": [_group(group) for group in kv_cache_config.kv_cache_groups],
        "kv_layout": spec.config.kv_cache_layout,
        "chunk_tokens": spec.tokens_per_block[0] * spec.blocks_per_chunk,
        "chunk_bytes": spec.kv_bytes_per_chunk,
        "attention": _attention(vllm_config),
        "model_runner": "v2" if vllm_config.use_v2_model_runner else "v1",
        "parallel": {
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "pcp": parallel.prefill_context_parallel_size,
            "dcp": parallel.decode_context_parallel_size,
            "cp_interleave": parallel.cp_kv_cache_interleave_size,
            "rank_order": "rank",
        },
        "connector_format": CONNECTOR_FORMAT,
        "vllm_minor": ".".join(version.split(".")[:2]),
        "tokenizer_digest": cache.files_digest(tokenizer_files(tokenizer_folder), tokenizer_folder),
        "chat_template_digest": _template_digest(tokenizer_folder),
        "vllm_version": version,
        "torch_version": str(torch.__version__),
        "platform": current_platform.device_name or current_platform.device_type,
        "hash_scheme": str(vllm_config.cache_config.prefix_caching_hash_algo),
        "sessiond_version": sessiond.__version__,
    }
    return Fingerprint(fields)


def _attention(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    """Return what decides how attention lays K and V out inside a page."""
    backend = vllm_config.attention_config.backend
    device = current_platform.device_type
    # On CPUs, vLLM packs K for the instruction set that it finds.
    features: dict[str, JsonValue] = {
        "amx": torch.cpu._is_amx_tile_supported(),  # noqa: SLF001 - what vLLM itself asks
        "avx512": torch.cpu._is_avx512_supported(),  # noqa: SLF001 - what vLLM itself asks
        "machine": platform.machine(),
    }
    return {
        "device": device,
        "backend": backend.name if backend is not None else "auto",
        "instruction_set": features if device == "cpu" else {},
    }


def _local_path(name: str, revision: str | None, download_folder: str | None) -> Path:
    """Return a local checkpoint (a folder or a file) or the one in the Hugging Face cache."""
    path = Path(name)
    if path.exists():
        return path
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for models by name

    try:
        return Path(
            snapshot_download(
                name, revision=revision, cache_dir=download_folder, local_files_only=True
            )
        )
    except (OSError, ValueError) as error:
        raise UnsupportedEngineError(
            f"The files of the model {name!r} are not on this machine, so sessiond cannot tell "
            "which weights computed its KV."
        ) from error


def _text_config_digest(config: Any, max_model_tokens: int) -> str:
    # to_json_string leaves out what equals the defaults; to_dict has everything, resolved.
    resolved = json.loads(json.dumps(config.to_dict(), default=str, sort_keys=True))
    for incidental in ("_name_or_path", "transformers_version"):
        resolved.pop(incidental, None)
    # Some rope types (LongRoPE) choose their factors by the length the engine was started with.
    resolved["max_model_len"] = max_model_tokens
    return json_digest(resolved).hex()


def _group(group: Any) -> dict[str, JsonValue]:
    spec = group.kv_cache_spec
    return {
        "kind": type(spec).__name__,
        "layers": len(group.layer_names),
        "block_tokens": spec.block_size,
        "page_bytes": spec.page_size_bytes,
    }


def _template_digest(folder: Path) -> str:
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).is_file():
            return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return ""


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
