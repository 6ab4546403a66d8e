"""Which engines are refused, asked with vLLM's own descriptions of them."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from vllm.config import LoadConfig, ParallelConfig, SpeculativeConfig, VllmConfig
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, KVCacheSpec

from sessiond.connector.refusals import require_supported_engine
from sessiond.domain.architectures import KV_KINDS, Support
from sessiond.domain.errors import UnsupportedEngineError

SHAPE: dict[str, Any] = {
    "block_size": 128,
    "num_kv_heads": 2,
    "head_size": 64,
    "dtype": torch.bfloat16,
}
LATENT: dict[str, Any] = {**SHAPE, "num_kv_heads": 1, "head_size": 576, "max_tp_shards": 1}
FULL = kv.FullAttentionSpec(**SHAPE)
WINDOW = kv.SlidingWindowSpec(**SHAPE, sliding_window=256)
MLA = kv.MLAAttentionSpec(**LATENT, cache_dtype_str="auto")
FP8 = replace(FULL, dtype=torch.uint8, kv_quant_mode=kv.KVQuantMode.FP8_PER_TENSOR)
MAMBA = kv.MambaSpec(block_size=128, shapes=((4, 4),), dtypes=(torch.float32,))


@dataclass(frozen=True, kw_only=True)
class TomorrowsSpec(kv.FullAttentionSpec):
    """A kind that this version of sessiond has never heard of."""


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """vLLM's configuration sets variables of the process, as for an engine of its own."""
    with patch.dict(os.environ):
        yield


@functools.cache
def default_config() -> VllmConfig:
    return VllmConfig()


def refusal(
    specs: Sequence[KVCacheSpec],
    config: VllmConfig | None = None,
    about_group: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Return why an engine with one group for each of *specs* is refused; empty if it is not."""
    groups = [KVCacheGroupSpec(["layer"], spec) for spec in specs]
    for name, value in about_group.items():
        setattr(groups[0], name, value)
    engine = kv.KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)
    try:
        require_supported_engine(config or default_config(), engine)
    except UnsupportedEngineError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "specs",
    [
        [FULL],
        [replace(FULL, dtype=torch.float16, head_size=128, head_size_v=128)],
        [replace(FULL, block_stride_alignment=2048, dcp_sharded=False, max_tp_shards=2)],
        [FULL, WINDOW],
        [WINDOW, FULL, WINDOW],
        [MLA],
        [replace(MLA, cache_dtype_str="bfloat16")],
        [FP8],
    ],
    ids=str,
)
def test_what_has_a_golden_test_starts(specs: Sequence[KVCacheSpec]) -> None:
    assert refusal(specs) == ""


KINDS = {
    "mamba": MAMBA,
    "chunked": kv.ChunkedLocalAttentionSpec(**SHAPE, attention_chunk_size=256),
    "sinks": kv.SinkFullAttentionSpec(**SHAPE, sink_len=4),
    "reference window": kv.RSWASpec(**SHAPE, rswa_window=256),
    "latent window": kv.SlidingWindowMLASpec(**LATENT, sliding_window=256),
    "cross": kv.CrossAttentionSpec(**SHAPE),
    "encoder": kv.EncoderOnlyAttentionSpec(**SHAPE),
    "circular": kv.CircularBufferSpec(**SHAPE),
    "hidden states": kv.HiddenStateCacheSpec(**LATENT),
    "hot": kv.HiSparseHotSpec(block_size=128, page_size=4096, blocks_per_request=2),
    "resident": kv.HiSparseResidentSpec(block_size=128, page_size=4096),
    "unequal": kv.UniformTypeKVCacheSpecs(
        block_size=128, kv_cache_specs={"a": FULL, "b": replace(FULL, head_size=128)}
    ),
    "unknown": TomorrowsSpec(**SHAPE),
}


@pytest.mark.parametrize("spec", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("beside", [[], [FULL]], ids=["alone", "mixed"])
def test_a_kind_without_a_golden_test_is_refused_by_its_name(
    spec: KVCacheSpec, beside: list[KVCacheSpec]
) -> None:
    message = refusal([*beside, spec])

    assert f"does not support this engine: {type(spec).__name__}: " in message
    assert message.endswith(".")


def test_every_refused_kind_of_the_table_is_tried_here() -> None:
    tried = {type(spec).__name__ for spec in KINDS.values()} - {"TomorrowsSpec"}
    assert tried == {known.kind for known in KV_KINDS if known.support is Support.REFUSED}


def test_every_kind_of_this_vllm_is_in_the_table() -> None:
    specs = {
        name
        for name, found in vars(kv).items()
        if isinstance(found, type) and issubclass(found, KVCacheSpec)
    }
    known = {kind.kind.partition("(")[0] for kind in KV_KINDS}
    assert specs - known == {"KVCacheSpec", "AttentionSpec"}  # what the others are made from


QUANTIZED = [mode for mode in kv.KVQuantMode if mode not in (0, 1)]
FORMS: list[tuple[KVCacheSpec, str]] = [
    *[(replace(FULL, kv_quant_mode=mode), f"kv_quant_mode={mode.name}") for mode in QUANTIZED],
    (replace(FULL, sliding_window=256), "sliding_window=256"),
    (replace(FULL, attention_chunk_size=256), "attention_chunk_size=256"),
    (replace(FULL, non_causal=True), "non_causal=True"),
    (replace(FULL, head_size_v=32), "head_size_v=32"),
    (replace(FULL, page_size_padded=1 << 20), "page_size_padded=1048576"),
    (replace(FULL, num_head_slots=2), "num_head_slots=2"),
    (replace(FULL, state_content_bytes=80), "state_content_bytes=80"),
    (replace(FULL, tokens_per_state=4), "tokens_per_state=4"),
    (replace(FULL, tokens_per_state=Fraction(1, 4)), "tokens_per_state=1/4"),
    (replace(WINDOW, extra_retained_tokens=4), "extra_retained_tokens=4"),
    (replace(WINDOW, kv_quant_mode=kv.KVQuantMode.FP8_PER_TENSOR), "kv_quant_mode=FP8_PER_TENSOR"),
    (replace(WINDOW, page_size_padded=1 << 20), "page_size_padded=1048576"),
    (replace(MLA, kv_quant_mode=kv.KVQuantMode.FP8_PER_TENSOR), "kv_quant_mode=FP8_PER_TENSOR"),
    (replace(MLA, cache_dtype_str="fp8_ds_mla"), "cache_dtype_str=fp8_ds_mla"),
    (replace(MLA, cache_role=kv.SparseCacheRole.INDEXER), "cache_role=INDEXER"),
    (replace(MLA, is_index_group_leader=True), "is_index_group_leader=True"),
    (replace(MLA, model_version="deepseek_v4"), "model_version=deepseek_v4"),
    (replace(MLA, alignment=576), "alignment=576"),
    (replace(MLA, head_size_v=512), "head_size_v=512"),
    (replace(MLA, non_causal_multi_token_decode=True), "non_causal_multi_token_decode=True"),
    (replace(MLA, tokens_per_state=4), "tokens_per_state=4"),
]


@pytest.mark.parametrize(("spec", "says"), FORMS, ids=[says for _, says in FORMS])
def test_a_form_without_a_golden_test_is_refused_by_what_is_unusual(
    spec: KVCacheSpec, says: str
) -> None:
    message = refusal([spec])

    assert f"{type(spec).__name__}(" in message
    assert says in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("is_eagle_group", True),
        ("host_resident", True),
        ("enable_kv_transfer", False),
        ("role", kv.KVCacheGroupRole.HISPARSE_SOURCE),
    ],
)
def test_what_is_unusual_about_a_group_is_refused(name: str, value: object) -> None:
    assert f"FullAttentionSpec({name}=" in refusal([FULL], about_group={name: value})


def test_groups_of_several_precisions_are_refused() -> None:
    message = refusal([FULL, replace(WINDOW, dtype=torch.float32)])
    assert "numbers of different types" in message


@pytest.mark.parametrize(
    ("parallel", "says"),
    [
        ({"data_parallel_size": 2}, "data parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"decode_context_parallel_size": 2}, "decode context parallelism"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ({"nnodes": 2}, "several hosts"),
        ({"enable_elastic_ep": True}, "elastic expert parallelism"),
    ],
    ids=str,
)
def test_ways_to_run_in_parallel(parallel: dict[str, Any], says: str) -> None:
    assert says in refusal([FULL], changed("parallel_config", ParallelConfig(), parallel))


@pytest.mark.parametrize(
    "load_format",
    ["dummy", "sharded_state", "tensorizer", "runai_streamer", "modelexpress", "ipc_cache", "gguf"],
)
def test_weights_that_come_from_elsewhere(load_format: str) -> None:
    config = changed("load_config", LoadConfig(), {"load_format": load_format})
    assert f"load format '{load_format}'" in refusal([FULL], config)


def test_speculative_decoding() -> None:
    config = VllmConfig()
    config.speculative_config = object.__new__(SpeculativeConfig)  # a whole one needs a model
    assert "speculative decoding" in refusal([FULL], config)


@pytest.mark.parametrize(
    ("cache", "says"),
    [
        ({"enable_prefix_caching": False}, "prefix caching is off"),
        ({"prefix_caching_hash_algo": "xxhash"}, "collide on purpose"),
        ({"prefix_caching_hash_algo": "xxhash_cbor"}, "'xxhash_cbor' can take one prompt's KV"),
    ],
    ids=str,
)
def test_caches(cache: dict[str, Any], says: str) -> None:
    config = VllmConfig()
    assert says in refusal([FULL], changed("cache_config", config.cache_config, cache))


def changed(name: str, part: object, values: dict[str, Any]) -> VllmConfig:
    """Return a configuration that differs in one part: set, since vLLM may ask for hardware."""
    for key, value in values.items():
        setattr(part, key, value)
    config = VllmConfig()
    setattr(config, name, part)
    return config


def test_weights_of_other_checkpoints_are_refused_by_name() -> None:
    described = SimpleNamespace(text_model_id="someone/else", audio_model_id=None, hidden_size=4)
    config = copy.copy(default_config())
    config.model_config = SimpleNamespace(hf_config=described)  # type: ignore[assignment] # vLLM's own would load it
    assert "other checkpoints as well (text_model_id)" in refusal([FULL], config)
    described.text_model_id = None
    assert refusal([FULL], config) == ""
