"""The KV bytes of one token, by architecture: exact, or safely more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sessiond.app.kvsize import context_kv_bytes

CONTEXT_TOKENS = 1000
PLAIN = {
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": CONTEXT_TOKENS,
}
#: 12 layers, K and V, 2 heads, 64 values a head, 2 bytes each
PLAIN_BYTES = 12 * 2 * 2 * 64 * 2
LATENT = {"num_key_value_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
WINDOW, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """A checkpoint, options, and how many bytes one token's KV is."""

    name: str
    token_bytes: float
    config: dict[str, Any]
    options: tuple[str, ...] = ()


CASES = [
    Case("grouped heads", PLAIN_BYTES, {}),
    Case("no grouping", 4 * PLAIN_BYTES, {"num_key_value_heads": None}),
    Case("a head size of its own", 2 * PLAIN_BYTES, {"head_dim": 128}),
    Case("the larger of two head sizes", 4 * PLAIN_BYTES, {"head_dim": 64, "global_head_dim": 256}),
    Case("the larger of K and V", 3 * PLAIN_BYTES, {"head_dim": 128, "v_head_dim": 192}),
    Case("heads for each layer", 4 * PLAIN_BYTES, {"num_key_value_heads": [2, 8, 4]}),
    Case("a text part", 2 * PLAIN_BYTES, {"text_config": {"num_hidden_layers": 24}}),
    Case("latent", 12 * 576 * 2, LATENT),
    Case("latent, on two ranks", 2 * 12 * 576 * 2, LATENT, ("-tp", "2")),
    Case("latent in 8 bits", 12 * 576, LATENT, ("--kv-cache-dtype", "fp8")),
    Case("more ranks than heads", 2 * PLAIN_BYTES, {}, ("--tensor-parallel-size=4",)),
    Case("as many ranks as heads", PLAIN_BYTES, {}, ("--tensor-parallel-size", "2")),
    Case("8 bits", PLAIN_BYTES / 2, {}, ("--kv-cache-dtype", "fp8_e4m3")),
    Case(
        "some layers in 8 bits",
        PLAIN_BYTES,
        {},
        ("--kv-cache-dtype", "fp8", "--kv-cache-dtype-skip-layers", "0"),
    ),
    Case("8 bits and scales", PLAIN_BYTES, {}, ("--kv-cache-dtype", "int8_per_token_head")),
    Case("32 bits", 2 * PLAIN_BYTES, {}, ("--dtype", "float32")),
    # Windows are counted whole, and vLLM fills groups up to one size.
    Case("half windows", PLAIN_BYTES, {"layer_types": [WINDOW, FULL] * 6}),
    Case("groups of 2", PLAIN_BYTES, {"layer_types": ([WINDOW] * 5 + [FULL]) * 2}),
    Case("groups of 7", PLAIN_BYTES * 14 / 12, {"layer_types": [WINDOW] * 7 + [FULL] * 5}),
    Case(
        "groups of 3",
        PLAIN_BYTES,
        {"num_hidden_layers": 11, "layer_types": [WINDOW] * 8 + [FULL] * 3},
    ),
    Case(
        "a pattern", PLAIN_BYTES * 14 / 12, {"sliding_window_pattern": 2, "num_hidden_layers": 14}
    ),
    Case("only windows", PLAIN_BYTES, {"sliding_window": 128}),
    Case("a longer rope", 4 * PLAIN_BYTES, {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    Case(
        "rope for each type of layer",
        8 * PLAIN_BYTES,
        {"rope_parameters": {FULL: {"rope_type": "linear", "factor": 8.0}, WINDOW: {}}},
    ),
    Case("yarn", PLAIN_BYTES, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    Case("a given length", PLAIN_BYTES / 2, {}, ("--max-model-len", "500")),
    Case("overrides", 2 * PLAIN_BYTES, {}, ("--hf-overrides", '{"num_hidden_layers": 24}')),
    Case("broken overrides", PLAIN_BYTES, {}, ("--hf-overrides", "{")),
    Case("no layers", 0, {"num_hidden_layers": None}),
    Case("no heads", 0, {"num_attention_heads": None}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_kv_bytes_of_a_context(tmp_path: Path, case: Case) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PLAIN, **case.config}))
    assert context_kv_bytes(tmp_path, case.options) == CONTEXT_TOKENS * case.token_bytes


def test_latent_attention_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MLA_DISABLE", "1")
    config = {**PLAIN, **LATENT, "qk_nope_head_dim": 128, "v_head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_kv_bytes(tmp_path, ()) == CONTEXT_TOKENS * 12 * 2 * 8 * (128 + 64) * 2
