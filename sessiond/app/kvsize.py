"""How many bytes of KV one full context is, read from a checkpoint's ``config.json``.

It decides the RAM tier's default size, before vLLM has resolved anything. So it is the right
number where that can be known, and otherwise a larger one: every layer counts as full attention,
and of several sizes the largest counts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sessiond.app.vllm_options import option, tokens

_HEAD_SIZES = ("head_dim", "global_head_dim", "swa_head_dim", "v_head_dim", "swa_v_head_dim")
_KV_HEADS = ("num_key_value_heads", "num_global_key_value_heads", "swa_num_key_value_heads")
_ONE_BYTE = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
#: Rope types whose factor is in the context length already, or does not lengthen it.
_LENGTH_INCLUDED = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default"}
)
#: vLLM makes groups of layers as large as the largest kind if it is at most this much larger.
_ONE_SIZE = 1.5


def context_kv_bytes(model: Path, vllm_options: Sequence[str]) -> int:
    """Return the KV bytes of one full context, on all ranks; 0 if the config does not tell."""
    config = _read_config(model / "config.json", vllm_options)
    ranks = tokens(option(vllm_options, "--tensor-parallel-size", "-tp")) or 1
    layers = _layers(config)
    values = _values_per_layer(config, ranks)
    return layers * values * _value_bytes(vllm_options) * _context_tokens(config, vllm_options)


def _values_per_layer(config: Mapping[str, Any], ranks: int) -> int:
    """Return how many numbers one layer keeps for one token; 0 if the config does not tell."""
    latent = config.get("kv_lora_rank") or 0
    rotated = config.get("qk_rope_head_dim") or 0
    if latent and os.environ.get("VLLM_MLA_DISABLE", "0") in ("", "0"):
        # Multi-head latent attention: one vector instead of K and V, the same on every rank.
        return int(latent + rotated) * ranks
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if not (heads and hidden):
        return 0
    head_size = max(_numbers(config, _HEAD_SIZES), default=hidden // heads)
    head_size = max(head_size, (config.get("qk_nope_head_dim") or 0) + rotated)
    kv_heads = max(_numbers(config, _KV_HEADS), default=heads)
    # More ranks than heads: each head is kept by several.
    return 2 * max(kv_heads, ranks) * head_size


def _layers(config: Mapping[str, Any]) -> int:
    """Return the number of layers, with those that vLLM adds to make groups of one size."""
    layers = int(config.get("num_hidden_layers") or 0)
    kinds = config.get("layer_types")
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(kinds, list) and kinds:
        counts = list(Counter(kinds).values())
    elif isinstance(pattern, int) and 0 < pattern <= layers:
        counts = [layers // pattern, layers - layers // pattern]
    else:
        counts = [layers]
    counts = [count for count in counts if count]
    if not counts:
        return 0
    group = max(counts) if max(counts) < _ONE_SIZE * min(counts) else min(counts)
    return max(layers, sum(-(-count // group) * group for count in counts))


def _value_bytes(vllm_options: Sequence[str]) -> int:
    kv_dtype = option(vllm_options, "--kv-cache-dtype") or "auto"
    if kv_dtype in _ONE_BYTE and not option(vllm_options, "--kv-cache-dtype-skip-layers"):
        return 1
    return 4 if option(vllm_options, "--dtype") in ("float32", "float") else 2


def _context_tokens(config: Mapping[str, Any], vllm_options: Sequence[str]) -> int:
    given = tokens(option(vllm_options, "--max-model-len"))  # 0 for "auto" too
    if given:
        return given
    derived = int(config.get("max_position_embeddings") or 0)
    return int(derived * max(_rope_factors(config), default=1))


def _rope_factors(config: Mapping[str, Any]) -> Iterator[float]:
    """Return the factors by which vLLM lengthens the context."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name)
        # Some models have parameters for each type of layer.
        each = [rope, *rope.values()] if isinstance(rope, dict) else []
        for parameters in each:
            if isinstance(parameters, dict) and isinstance(parameters.get("factor"), int | float):
                kind = parameters.get("rope_type", parameters.get("type"))
                if kind not in _LENGTH_INCLUDED:
                    yield max(1.0, parameters["factor"])


def _numbers(config: Mapping[str, Any], names: Sequence[str]) -> Iterator[int]:
    """Return these settings; one may be a list with a number for each layer."""
    for name in names:
        value = config.get(name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number > 0:
                yield number


def _read_config(path: Path, vllm_options: Sequence[str]) -> Mapping[str, Any]:
    try:
        config = _object(path.read_text())
    except (OSError, ValueError):
        return {}
    try:
        overrides = _object(option(vllm_options, "--hf-overrides") or "{}")
    except ValueError:
        overrides = {}  # vLLM will say what is wrong with them
    return {**_flat(config), **_flat(overrides)}


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the part that reads text, in models that read more than text."""
    text_config = config.get("text_config")
    return {**config, **text_config} if isinstance(text_config, dict) else config
