"""Where the contestants run, and what their engines have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessiond.app.bench.kv import CHUNK_TOKENS
from sessiond.app.bench.resume.options import AUTO, HELD_CONTEXTS, MODEL_TOKENS, UNIT_TOKENS
from sessiond.app.kvsize import context_kv_bytes
from sessiond.testing.stack import SERVED_NAME

#: Beside what the contexts need: their tails, and vLLM's own block.
_SPARE_BLOCKS = 2 * HELD_CONTEXTS
#: One that is being read, and one that is being written, need a few chunks more.
_SPARE_CHUNKS = 4


@dataclass(frozen=True)
class Site:
    """The same model and the same memory for everybody."""

    folder: Path
    model: Path
    token_bytes: int  #: of KV
    longest_tokens: int  #: the longest context, in whole chunks
    lmcache_python: Path | None = None
    kv_cache_dtype: str = AUTO

    @property
    def kv_blocks(self) -> int:
        """Blocks of the engines' KV memory."""
        return HELD_CONTEXTS * self.longest_tokens // CHUNK_TOKENS + _SPARE_BLOCKS

    @property
    def kv_bytes(self) -> int:
        """The engines' KV memory."""
        return self.kv_blocks * CHUNK_TOKENS * self.token_bytes

    @property
    def ram_bytes(self) -> int:
        """The RAM tier of those that have one."""
        tokens = HELD_CONTEXTS * self.longest_tokens + _SPARE_CHUNKS * UNIT_TOKENS
        return tokens * self.token_bytes

    @property
    def options(self) -> tuple[str, ...]:
        """vLLM's options; its KV memory must hold the longest prompt that it allows."""
        tokens = str(self.longest_tokens + UNIT_TOKENS)
        return (
            "--max-model-len",
            tokens,
            # vLLM's ExampleConnector stores what the first step of a prompt computes.
            "--max-num-batched-tokens",
            tokens,
            "--num-gpu-blocks-override",
            str(self.kv_blocks),
            *_dtype_options(self.kv_cache_dtype),
        )


def kv_token_bytes(model: Path, kv_cache_dtype: str = AUTO) -> int:
    """Return the KV bytes of one token of the model."""
    options = ("--max-model-len", str(MODEL_TOKENS), *_dtype_options(kv_cache_dtype))
    return context_kv_bytes(model, options) // MODEL_TOKENS


def _dtype_options(kv_cache_dtype: str) -> tuple[str, ...]:
    return () if kv_cache_dtype == AUTO else ("--kv-cache-dtype", kv_cache_dtype)


#: Development mode has a call that clears VRAM; the fixed seed keeps vLLM's own keys.
ENV: Mapping[str, str] = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"}


def rival_options(site: Site, transfer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return vLLM's options without sessiond; *transfer* is its KV transfer configuration."""
    options = ("--served-model-name", SERVED_NAME, *site.options)
    if transfer is None:
        return options
    return (*options, "--kv-transfer-config", json.dumps({"kv_role": "kv_both", **transfer}))


def fs_transfer(site: Site, folder: Path) -> dict[str, Any]:
    """Return the configuration of vLLM's own ``fs`` tier, over our copy worker on a CPU."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "HostTieringSpec",
            "spec_module_path": "sessiond.connector.hostspec",
            "cpu_bytes_to_use": site.ram_bytes,
            "block_size": CHUNK_TOKENS,
            "offload_prompt_only": False,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        },
    }


def example_transfer(folder: Path) -> dict[str, Any]:
    """Return the configuration of vLLM's ExampleConnector."""
    return {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }


def lmcache_transfer(port: int) -> dict[str, Any]:
    """Return the configuration of LMCache in MP mode."""
    extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
    return {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}
