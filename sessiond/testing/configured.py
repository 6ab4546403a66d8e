"""A tiny checkpoint and what vLLM resolves of it and of a command line, without an engine.

Nothing is loaded or computed: the checkpoint's weights are a few bytes.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sessiond.connector.digests import DigestCache
from sessiond.connector.frontend import Frontend
from sessiond.connector.layers import Code, LayerFacts, Told
from sessiond.testing.snapshots import a_key_ring

if TYPE_CHECKING:
    from pathlib import Path

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from sessiond.connector.fingerprint import Facts, Files
    from sessiond.domain.fingerprint import Fingerprint

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "rope_theta": 10000.0,
}
TOKENIZER: Mapping[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "add_bos_token": True,
    "chat_template": "{{ messages }}",
    "model_max_length": 8192,
}
LAYERS: Mapping[str, LayerFacts] = {
    f"model.layers.{number}.self_attn.attn": LayerFacts("CPU_ATTN", ((1.0,), (1.0,)))
    for number in range(2)
}
_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@dataclass(frozen=True)
class Change:
    """One thing in which an engine, or its files, may differ from :func:`make_checkpoint`'s."""

    what: str
    changes: str  #: the field of the fingerprint
    options: Mapping[str, Any] = field(default_factory=dict)  #: of vLLM's command line
    edit: Callable[[Path], object] | None = None  #: of the checkpoint
    config: Callable[[VllmConfig], object] | None = None  #: of what vLLM has resolved
    env: Mapping[str, str] = field(default_factory=dict)
    frontend: Frontend = field(default_factory=Frontend)
    layers: Mapping[str, LayerFacts] = field(default_factory=lambda: LAYERS)
    code: Code = frozenset()  #: that its workers have loaded from elsewhere
    kv: Mapping[str, Any] = field(default_factory=dict)  #: of the KV group's spec
    chunk_tokens: int = 256


def make_checkpoint(folder: Path) -> Path:
    """Make the checkpoint; returns its folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@contextmanager
def vllm_imported() -> Iterator[None]:
    """Import what is slow, once. What vLLM changes of the environment is undone at the end."""
    with patch.dict(os.environ, _ENV), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, and torch's
        from vllm.model_executor.models.llama import LlamaForCausalLM  # noqa: PLC0415 - slow
        from vllm.model_executor.models.registry import ModelRegistry  # noqa: PLC0415 - slow

        # Otherwise vLLM would look at the class in a process of its own, for half a minute.
        ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
        yield


def fingerprint(model: Path, change: Change | None = None) -> Fingerprint:
    """Return the fingerprint of an engine that serves *model*, with one change of its own; the
    change of the checkpoint is the caller's."""
    change = change or Change("nothing", "")
    with warnings.catch_warnings(), patch.dict(os.environ, change.env):
        warnings.simplefilter("ignore")  # vLLM's own
        files, facts = read(model, change)
    cache = DigestCache(model.parent / "digests.json", a_key_ring())
    digests = {
        part.name: part.digest(
            {path: cache.content(path, stamp) for path, stamp in part.files.items()}, cache
        )
        for part in (replace(part, loaded_ns=2**63) for part in files.parts())
    }
    return facts.complete(digests, Told(change.layers, change.code))


def read(model: Path, change: Change) -> tuple[Files, Facts]:
    """Return the files and the facts that such an engine has."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import config  # noqa: PLC0415

    from sessiond.connector.fingerprint import Files, read_facts  # noqa: PLC0415 - slow
    from sessiond.connector.spec import SessionOffloadingSpec  # noqa: PLC0415 - slow

    vllm_config = _vllm_config(model, change)
    kv_cache_config = _kv_cache_config(vllm_config, change)
    spec = SessionOffloadingSpec(config.build_offloading_config(vllm_config, kv_cache_config))
    files = Files.find(vllm_config)
    return files, read_facts(vllm_config, kv_cache_config, spec, files, change.frontend)


def _vllm_config(model: Path, change: Change) -> VllmConfig:
    from vllm.config import KVTransferConfig  # noqa: PLC0415 - slow
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - slow

    tier = {"cpu_bytes_to_use": 1 << 30, "block_size": change.chunk_tokens}
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tier
    )
    arguments = EngineArgs(
        model=str(model), enforce_eager=True, kv_transfer_config=transfer, **change.options
    )
    vllm_config = arguments.create_engine_config()
    vllm_config.cache_config.kv_cache_layout = "LBNHC"
    if change.config is not None:
        change.config(vllm_config)
    return vllm_config


def _kv_cache_config(vllm_config: VllmConfig, change: Change) -> KVCacheConfig:
    from vllm.v1.kv_cache_interface import (  # noqa: PLC0415 - slow
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
    )

    sizes = {"block_size": 128, "num_kv_heads": 2, "head_size": 32, **change.kv}
    dtype: Any = vllm_config.model_config.dtype
    spec = FullAttentionSpec(dtype=dtype, **sizes)
    groups = [KVCacheGroupSpec(list(LAYERS), spec)]
    kv_cache_config = KVCacheConfig(8, [], groups)
    kv_cache_config.hash_block_size = sizes["block_size"]
    return kv_cache_config
