"""Reads the fingerprint from the live engine's resolved configuration."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform

import sessiond
from sessiond.connector.digests import DigestCache, tokenizer_files, weight_files
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
    model_folder = _local_folder(model.model)
    tokenizer_folder = _local_folder(str(model.tokenizer))
    version = vllm_version()
    fields: dict[str, JsonValue] = {
        "weights_digest": cache.files_digest(weight_files(model_folder), model_folder),
        "model_config_digest": _text_config_digest(model.hf_text_config, model.max_model_len),
        "quantization": model.quantization,
        "model_dtype": _name(model.dtype),
        "kv_dtype": spec.config.model.dtype,
        "kv_groups": [_group(group) for group in kv_cache_config.kv_cache_groups],
        "kv_layout": spec.config.kv_cache_layout,
        "chunk_tokens": spec.tokens_per_block[0] * spec.blocks_per_chunk,
        "chunk_bytes": spec.kv_bytes_per_chunk,
        "model_runner": "v2" if vllm_config.use_v2_model_runner else "v1",
        "parallel": {
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "pcp": parallel.prefill_context_parallel_size,
            "dcp": parallel.decode_context_parallel_size,
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


def _local_folder(name: str) -> Path:
    """Return the folder of a local checkpoint or of one in the Hugging Face cache."""
    path = Path(name)
    if path.exists():
        return path if path.is_dir() else path.parent
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only for models by name

    try:
        return Path(snapshot_download(name, local_files_only=True))
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
