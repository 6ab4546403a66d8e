"""Small LoRA adapters of a checkpoint, made without any training: random, and not tiny."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RANK = 8
#: Of the entries of both matrices. With 0.8, two adapters still reply the same to a question about
#: source code; with this they reply nonsense, each its own.
_SCALE = 1.2
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")


def build_adapter(folder: Path, model: Path, seed: int, *, embeddings: bool = False) -> Path:
    """Write an adapter for the checkpoint into *folder*, as PEFT lays it out; return the folder.

    The same seed gives the same weights.

    :param embeddings: let it touch the embedding of tokens too
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - takes seconds to import

    config = json.loads((model / "config.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, torch.Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        for module in _MODULES:
            weights |= _module(f"model.layers.{layer}.self_attn.{module}", config, seed)
    if embeddings:
        weights |= _embedding(config, seed)
    # A new file renamed over the old one: whoever reads the old one goes on with it.
    written = folder / "adapter_model.new"
    save_file(weights, written)
    written.replace(folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [*_MODULES, *(["embed_tokens"] if embeddings else [])],
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _module(name: str, config: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    hidden = config["hidden_size"]
    head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
    attention = head_size * config["num_attention_heads"]
    kv = head_size * config["num_key_value_heads"]
    kind = name.rpartition(".")[2]
    wide_in = attention if kind == "o_proj" else hidden
    wide_out = {"q_proj": attention, "o_proj": hidden}.get(kind, kv)
    return {
        f"base_model.model.{name}.lora_A.weight": _random((RANK, wide_in), f"{name} A", seed),
        f"base_model.model.{name}.lora_B.weight": _random((wide_out, RANK), f"{name} B", seed),
    }


def _embedding(config: dict[str, int], seed: int) -> dict[str, torch.Tensor]:
    name = "base_model.model.model.embed_tokens"
    rows, columns = config["vocab_size"], config["hidden_size"]
    return {
        f"{name}.lora_embedding_A": _random((RANK, rows), "embedding A", seed),
        f"{name}.lora_embedding_B": _random((columns, RANK), "embedding B", seed),
    }


def _random(shape: tuple[int, int], name: str, seed: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - takes seconds to import

    generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
    deviation: float = _SCALE / shape[1] ** 0.5
    values = torch.empty(shape).normal_(0.0, deviation, generator=generator)
    return values.to(torch.bfloat16)
