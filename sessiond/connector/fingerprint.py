"""Reads the fingerprint from the live engine's resolved configuration and the files it loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform

import sessiond
from sessiond.connector import kvfacts
from sessiond.connector.checkpoint import (
    Checkpoint,
    code_files,
    find_checkpoint,
    quantization_files,
    tokenizer_files,
    weight_files,
)
from sessiond.connector.computation import computation
from sessiond.connector.frontend import Frontend
from sessiond.connector.identity import Part
from sessiond.connector.layers import Layers, Told
from sessiond.connector.loaded import process_start_ns, server_start_ns
from sessiond.connector.modelconfig import config_digest, config_explained, quantization_digest
from sessiond.connector.mover.lossy import lossy_codec
from sessiond.connector.prompts import Prompts, template_arguments
from sessiond.connector.versions import vllm_series, vllm_version
from sessiond.domain.canonical import JsonValue, json_digest
from sessiond.domain.fingerprint import CONNECTOR_FORMAT, EXPLAINED, Fingerprint
from sessiond.domain.loss import LOSSY_FIELD

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


@dataclass(frozen=True)
class Files:
    """Where the engine's model and tokenizer lie."""

    model: Checkpoint
    tokenizer: Checkpoint

    @classmethod
    def find(cls, vllm_config: VllmConfig) -> Files:
        """Find them.

        :raises UnsupportedEngineError: they are not on this machine
        """
        model = vllm_config.model_config
        folder = vllm_config.load_config.download_dir
        commit = getattr(model.hf_config, "_commit_hash", None)
        return cls(
            find_checkpoint(model.model, model.revision, folder, commit),
            find_checkpoint(str(model.tokenizer), model.tokenizer_revision, folder),
        )

    @property
    def prompts(self) -> Prompts:
        """Where the tokenizer's settings and the chat templates are."""
        return Prompts(self.tokenizer.folder, self.model.folder)

    def parts(self) -> list[Part]:
        """Return all files whose contents count, as they are now.

        :raises UnsupportedEngineError: there are no weights
        :raises OSError: one went away meanwhile
        """
        loaded_ns, served_ns = process_start_ns(os.getpid()), server_start_ns()
        model, tokenizer = self.model.folder, self.tokenizer.folder
        weights, local = weight_files(self.model), not self.model.revision
        return [
            Part.meet("weights", model, loaded_ns, weights, complete=local),
            Part.meet("quantization", model, served_ns, quantization_files(model)),
            Part.meet("code", model, served_ns, code_files(model)),
            Part.meet("tokenizer", tokenizer, served_ns, tokenizer_files(tokenizer)),
            # Read and not digested; met all the same, so that a change of them is noticed.
            *(Part.meet(f"prompts {p}", p.parent, served_ns, [p]) for p in self.prompts.files()),
        ]


@dataclass(frozen=True)
class Facts:
    """Everything that a fingerprint has beside the digests of files and what workers tell."""

    fields: Mapping[str, JsonValue]
    of_layers: Callable[[Layers], Mapping[str, JsonValue]]
    load_format: str  #: where the checkpoint has weights of several formats; else empty
    quantization: Mapping[str, JsonValue]
    tokenizer_settings: JsonValue

    def stored(self, lossy: str) -> Facts:
        """Return the same of an engine that stores KV with loss, if it does.

        :raises ConfigurationError: its KV cannot be stored that way
        """
        if not lossy:
            return self
        fields = {**self.fields, LOSSY_FIELD: lossy}
        lossy_codec(Fingerprint(fields))
        return replace(self, fields=fields)

    def complete(self, digests: Mapping[str, str], told: Told) -> Fingerprint:
        """Return the fingerprint.

        :param digests: of :meth:`Files.parts`, by their names
        :param told: by the workers
        """
        tokenizer: JsonValue = [digests["tokenizer"], self.tokenizer_settings]
        weights: JsonValue = [digests["weights"], self.load_format]
        code: JsonValue = [digests["code"], [list(module) for module in sorted(told.code)]]
        return Fingerprint(
            {
                **self.fields,
                **self.of_layers(told.layers),
                "weights_digest": json_digest(weights).hex(),
                "code_digest": json_digest(code).hex(),
                "quantization": {**self.quantization, "files_digest": digests["quantization"]},
                "tokenizer_digest": json_digest(tokenizer).hex(),
            }
        )


def read_facts(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    spec: TieringOffloadingSpec,
    files: Files,
    frontend: Frontend,
) -> Facts:
    """Return every fact of design §6 that this engine has, resolved, but for large files.

    :raises OSError: a file of the tokenizer cannot be read
    """
    model, prompts = vllm_config.model_config, files.prompts
    return Facts(
        fields={
            **_model_fields(vllm_config, files),
            **_kv_fields(vllm_config, kv_cache_config, spec),
            "special_tokens": prompts.special_tokens(model),
            "chat_template_digest": prompts.template_digest(frontend.chat_template),
            "chat_template_arguments": template_arguments(frontend),
            **_advisory_fields(vllm_config),
            EXPLAINED: {"model_config_digest": config_explained(model)},
        },
        of_layers=partial(_layer_fields, vllm_config, spec.config.model.dtype),
        load_format=_load_format(vllm_config, files.model),
        quantization={"method": model.quantization, "config_digest": quantization_digest(model)},
        tokenizer_settings=prompts.tokenizer_settings(str(model.tokenizer_mode)),
    )


def _model_fields(vllm_config: VllmConfig, files: Files) -> dict[str, JsonValue]:
    model = vllm_config.model_config
    return {
        "revision": files.model.revision,
        "model_config_digest": config_digest(model),
        "model_dtype": _name(model.dtype),
        "model_runner": "v2" if vllm_config.use_v2_model_runner else "v1",
        "speculation": kvfacts.speculation(vllm_config),
        "computation": computation(vllm_config),
        "connector_format": CONNECTOR_FORMAT,
        "vllm_series": vllm_series(current_platform.device_type),
    }


def _kv_fields(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, spec: TieringOffloadingSpec
) -> dict[str, JsonValue]:
    return {
        "kv_dtype": spec.config.model.dtype,
        "kv_groups": kvfacts.kv_groups(kv_cache_config),
        "kv_layout": spec.config.kv_cache_layout,
        "chunk_tokens": spec.tokens_per_block[0] * spec.blocks_per_chunk,
        "chunk_bytes": spec.kv_bytes_per_chunk,
        "parallel": kvfacts.parallel(vllm_config),
    }


def _layer_fields(vllm_config: VllmConfig, kv_dtype: str, layers: Layers) -> dict[str, JsonValue]:
    return {
        "kv_scales": kvfacts.kv_scales(vllm_config, kv_dtype, layers),
        "attention": kvfacts.attention(layers),
    }


def _advisory_fields(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    return {
        "vllm_version": vllm_version(),
        "torch_version": str(torch.__version__),
        "platform": current_platform.device_name or current_platform.device_type,
        "hash_scheme": str(vllm_config.cache_config.prefix_caching_hash_algo),
        "hash_seed": os.environ.get("PYTHONHASHSEED") or "random",
        "sessiond_version": sessiond.__version__,
    }


def _load_format(vllm_config: VllmConfig, model: Checkpoint) -> str:
    """Return which of several sets of weights is loaded; where there is one, it cannot matter."""
    sets = {_weight_set(path) for path in weight_files(model) if path.suffix != ".json"}
    if len(sets) < 2:
        return ""
    load = vllm_config.load_config
    return f"{load.load_format} without {sorted(load.ignore_patterns or ())}"


def _weight_set(path: Path) -> tuple[str, bool]:
    # Mistral's checkpoints may have their own files beside those of transformers.
    return path.suffix, path.name.startswith("consolidated")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
