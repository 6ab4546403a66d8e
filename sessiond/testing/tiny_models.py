"""Tiny checkpoints of many architectures, with random weights and the real model's tokenizer.

They say nothing, but their greedy output depends on the whole context: weights are scaled so
that attention looks at few tokens and layers add as much as the embedding brought, and so that
no token is likely by itself. A golden test over them fails if KV is wrong anywhere.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessiond.testing.model import build_model

if TYPE_CHECKING:
    from torch import nn

#: Changes whenever checkpoints made by an older version of this module must be made anew.
_VERSION = 1
_COMPLETE = "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
#: Of the real model's tokenizer.
_VOCABULARY = 49_152
_BOS, _EOS = 1, 2
_HIDDEN = 256
_CONTEXT_TOKENS = 4_096
#: Standard deviation of attention's logits: high, so that each head looks at a few tokens of
#: the context. Heads that look at many would make every position, and every answer, alike.
_QUERY_GAIN = 4.0
_OUTPUT_GAIN = 2.0
_LOGIT_GAIN = 4.0
#: Only every so many-th token is ever generated: with fewer candidates, the best two are seldom
#: as close as bfloat16 is coarse.
_SPOKEN_STEP = 16

_SHAPE: Mapping[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": _CONTEXT_TOKENS,
    "bos_token_id": _BOS,
    "eos_token_id": _EOS,
    "pad_token_id": _EOS,
    "tie_word_embeddings": False,
}
_LATENT = {  # the only sizes that the CPU platform's kernels know
    "head_dim": 64,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "first_k_dense_replace": 4,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
}
_MIXED_WINDOW = ("sliding_attention", "full_attention") * 2


@dataclass(frozen=True)
class TinyModel:
    """How one checkpoint is made.

    :param config: class of transformers' configuration
    :param changes: what differs from the shape that all share
    :param embedding_scale: by which the architecture multiplies its embeddings
    """

    config: str
    changes: Mapping[str, Any]
    embedding_scale: float = 1.0


TINY_MODELS: Mapping[str, TinyModel] = {
    "llama": TinyModel("LlamaConfig", {}),
    "qwen3": TinyModel("Qwen3Config", {}),
    "gemma3": TinyModel(
        "Gemma3TextConfig",
        {
            "query_pre_attn_scalar": 64,
            "sliding_window": 256,
            "layer_types": list(_MIXED_WINDOW),
        },
        embedding_scale=_HIDDEN**0.5,
    ),
    "mistral": TinyModel("MistralConfig", {"sliding_window": 256}),
    "deepseek2": TinyModel("DeepseekV2Config", _LATENT),
    "qwen3-next": TinyModel(
        "Qwen3NextConfig",
        {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
        },
    ),
    "llama4": TinyModel(
        "Llama4TextConfig",
        {
            "intermediate_size_mlp": 512,
            "num_local_experts": 2,
            "attention_chunk_size": 256,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "no_rope_layers": [1, 0, 1, 0],
        },
    ),
}


def build_tiny_model(folder: Path, name: str) -> Path:
    """Build one of :data:`TINY_MODELS` below *folder* unless it is there; return its path.

    The weights are the same each time. Building takes seconds, the real model's checkpoint
    (whose tokenizer it gets) half a minute the first time.

    :raises FileNotFoundError: the package with the real model is not installed
    """
    target = folder / f"tiny-{name}-{_VERSION}"
    if (target / _COMPLETE).is_file():
        return target
    real = build_model(folder)
    with tempfile.TemporaryDirectory(dir=folder) as building:
        _random_model(TINY_MODELS[name]).save_pretrained(building)
        for file in _TOKENIZER_FILES:
            shutil.copyfile(real / file, Path(building) / file)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(building, target)
    return target


def _random_model(tiny: TinyModel) -> Any:  # noqa: ANN401 - a class that transformers chooses
    import torch  # noqa: PLC0415 - seconds to import, and only needed once
    import transformers  # noqa: PLC0415

    config = getattr(transformers, tiny.config)(**{**_SHAPE, **tiny.changes})
    models: Any = transformers.AutoModelForCausalLM
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = models.from_config(config, dtype=torch.bfloat16)
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            _fill(name, parameter, tiny)
    return model


def _fill(name: str, parameter: nn.Parameter, tiny: TinyModel) -> None:
    """Draw one weight; norms, biases and decays keep what their architecture starts with."""
    if parameter.ndim > 1 and "conv" not in name:
        parameter.normal_(0.0, _deviation(name, parameter.shape[-1], tiny))
    elif name.endswith(("q_norm.weight", "k_norm.weight")):
        parameter.add_(_QUERY_GAIN**0.5 - 1.0)  # both: what they normalise is multiplied
    if "lm_head" in name:
        parameter[[at for at in range(len(parameter)) if at % _SPOKEN_STEP]] = 0.0


_GAINS: Mapping[str, float] = {
    "lm_head": _LOGIT_GAIN,
    "q_proj": _QUERY_GAIN,
    "o_proj": _OUTPUT_GAIN,
}


def _deviation(name: str, inputs: int, tiny: TinyModel) -> float:
    if "embed_tokens" in name:
        return 1.0 / tiny.embedding_scale
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
    return float(gain * inputs**-0.5)
