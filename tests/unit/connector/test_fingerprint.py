"""Real configurations of vLLM and real files: one thing changes, exactly its field changes.

Nothing is loaded or computed; vLLM only resolves what its command line and the checkpoint say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sessiond.connector.frontend import Frontend
from sessiond.connector.layers import LayerFacts
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.fingerprint import EXPLAINED, FIELDS, Fingerprint, compare
from sessiond.testing.configured import (
    LAYERS,
    TOKENIZER,
    Change,
    fingerprint,
    make_checkpoint,
    read,
    vllm_imported,
)

LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "original_max_position_embeddings": 4096,
    },
    "original_max_position_embeddings": 4096,
}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}


@pytest.fixture(scope="module", autouse=True)
def vllm() -> Iterator[None]:
    with vllm_imported():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def edited(name: str, **values: Any) -> Callable[[Path], object]:  # noqa: ANN401 - JSON
    def edit(model: Path) -> None:
        known = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**known, **values}))

    return edit


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(text)


def attribute(path: str, value: Any) -> Callable[[Any], object]:  # noqa: ANN401 - vLLM's
    def change(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's
        *way, name = path.split(".")
        for part in way:
            vllm_config = getattr(vllm_config, part)
        object.__setattr__(vllm_config, name, value)

    return change


OTHER_BACKEND = {name: LayerFacts("FLASHINFER", layer.scales) for name, layer in LAYERS.items()}
TABLE = (
    Change("a weight", "weights_digest", edit=written("model.safetensors", "WEIGHTS")),
    Change("more weights", "weights_digest", edit=written("model-2.safetensors", "more")),
    Change("which shard counts", "weights_digest", edit=written("m.safetensors.index.json", "{}")),
    Change("code of the checkpoint", "code_digest", edit=written("modeling.py", "pass")),
    Change("code from elsewhere", "code_digest", code=frozenset({("modeling", "aa")})),
    Change("rope", "model_config_digest", {"hf_overrides": LINEAR}),
    Change("the rope's base", "model_config_digest", edit=edited("config.json", rope_theta=5e5)),
    Change("a norm", "model_config_digest", edit=edited("config.json", rms_norm_eps=1e-4)),
    Change(
        "windows",
        "model_config_digest",
        config=attribute("model_config.disable_sliding_window", value=True),
    ),
    Change("quantization", "quantization", config=attribute("model_config.quantization", "fp8")),
    Change(
        "how it is quantized",
        "quantization",
        config=attribute("model_config.hf_config.quantization_config", {"bits": 4}),
    ),
    Change("a side file", "quantization", edit=written("hf_quant_config.json", "{}")),
    Change("KV's data type", "kv_dtype", config=attribute("cache_config.cache_dtype", "float16")),
    Change("a block size", "kv_groups", kv={"block_size": 256}),
    Change("a window", "kv_groups", kv={"sliding_window": 512}),
    Change("a layout", "kv_layout", config=attribute("cache_config.kv_cache_layout", "LBHNC")),
    Change("a backend", "attention", layers=OTHER_BACKEND),
    Change(
        "context parallelism",
        "parallel",
        config=attribute("parallel_config.cp_kv_cache_interleave_size", 16),
    ),
    *(
        Change(f"{part}.{knob}", "computation", config=attribute(f"{part}.{knob}", value))
        for part, knob, value in (
            ("attention_config", "use_non_causal", True),
            ("attention_config", "flash_attn_version", 3),
            ("attention_config", "use_prefill_query_quantization", True),
            ("attention_config", "disable_flashinfer_q_quantization", True),
            ("kernel_config", "moe_backend", "marlin"),
            ("kernel_config", "linear_backend", "emulation"),
            ("kernel_config", "linear_backend_per_quant", {"nvfp4_w4a16": "humming"}),
            ("cache_config", "kv_sharing_fast_prefill", True),
            ("mamba_config", "enable_stochastic_rounding", True),
        )
    ),
    Change("a platform's", "computation", {"additional_config": {"a": 1}}),
    Change("a new part", "computation", config=attribute("diffusion_config", Frontend())),
    *(
        Change(name, "computation", env={name: value})
        for name, value in (
            ("VLLM_CPU_INT4_W4A8", "0"),
            ("VLLM_FLOAT32_MATMUL_PRECISION", "medium"),
            ("VLLM_BATCH_INVARIANT", "1"),
            ("VLLM_MARLIN_INPUT_DTYPE", "fp8"),
            ("VLLM_USE_DEEP_GEMM_E8M0", "0"),
            ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
        )
    ),
    Change("a tokenizer", "tokenizer_digest", edit=written("tokenizer.json", "{}")),
    Change("an added token", "tokenizer_digest", edit=written("added_tokens.json", "{}")),
    Change(
        "its class",
        "tokenizer_digest",
        edit=edited("tokenizer_config.json", tokenizer_class="Other"),
    ),
    Change("its mode", "tokenizer_digest", {"tokenizer_mode": "slow"}),
    Change(
        "a token before all",
        "special_tokens",
        edit=edited("tokenizer_config.json", add_bos_token=False),
    ),
    Change(
        "a last token", "special_tokens", edit=edited("tokenizer_config.json", eos_token="</s>")
    ),
    Change("its id", "special_tokens", edit=edited("config.json", eos_token_id=[2, 3])),
    Change("a map", "special_tokens", edit=written("special_tokens_map.json", '{"a": 1}')),
    Change(
        "a template",
        "chat_template_digest",
        edit=edited("tokenizer_config.json", chat_template="{{ tools }}"),
    ),
    Change("a template's file", "chat_template_digest", edit=written("chat_template.jinja", "x")),
    Change(
        "a processor's",
        "chat_template_digest",
        edit=written("chat_template.json", '{"chat_template": "x"}'),
    ),
    Change("a given one", "chat_template_digest", frontend=Frontend(chat_template="x")),
    Change(
        "an argument",
        "chat_template_arguments",
        frontend=Frontend(chat_template_kwargs={"enable_thinking": False}),
    ),
    Change(
        "a content format",
        "chat_template_arguments",
        frontend=Frontend(chat_template_content_format="openai"),
    ),
    Change("a hash", "hash_scheme", {"prefix_caching_hash_algo": "sha256_cbor"}),
    Change("a seed", "hash_seed", env={"PYTHONHASHSEED": "7"}),
)
#: Changes of several facts at once, by what they are.
SEVERAL = (
    (Change("a data type", "", {"dtype": "float16"}), {"model_dtype", "kv_dtype", "kv_groups"}),
    (Change("the page size", "", kv={"page_size_padded": 1 << 20}), {"kv_groups", "chunk_bytes"}),
    (Change("chunks", "", chunk_tokens=512), {"chunk_tokens", "chunk_bytes"}),
    (
        Change("speculation", "", config=attribute("speculative_config", Frontend())),
        {"speculation"},
    ),
)
#: What decides nothing: no engine may lose its snapshots over it.
NOTHING = (
    Change("a length", "", {"max_model_len": 4096}),
    Change("a served name", "", {"served_model_name": "other"}),
    Change("a seed for sampling", "", {"seed": 7}),
    Change("a thread", "", env={"VLLM_CPU_OMP_THREADS_BIND": "0"}),
    Change("memory", "", env={"VLLM_CPU_KVCACHE_SPACE": "2"}),
    Change("a port", "", env={"VLLM_PORT": "5000"}),
    Change("a log", "", env={"VLLM_LOGGING_LEVEL": "INFO"}),
    Change("a secret", "", env={"VLLM_API_KEY": "secret"}),
    Change("a service called vllm", "", env={"VLLM_SERVICE_PORT_8000_TCP_ADDR": "10.0.0.7"}),
    Change("how it is compiled", "", config=attribute("compilation_config.mode", 3)),
    Change("batches", "", {"max_num_batched_tokens": 4096}),
    Change("a backend that is resolved", "", {"attention_backend": "CPU_ATTN"}),
    Change("a readme", "", edit=written("README.md", "new")),
    Change("who wrote it", "", edit=edited("config.json", transformers_version="4.0")),
    Change("labels", "", edit=edited("config.json", id2label={"0": "x"})),
    Change("defaults for sampling", "", edit=written("generation_config.json", "{}")),
    Change(
        "the template that counts anyway",
        "",
        frontend=Frontend(chat_template=TOKENIZER["chat_template"]),
    ),
)


def names(stored: Fingerprint, live: Fingerprint) -> set[str]:
    return {mismatch.field for mismatch in compare(stored, live)}


def what(change: Change) -> str:
    return change.what


@pytest.mark.parametrize("change", TABLE, ids=what)
def test_one_change_changes_exactly_its_field(model: Path, change: Change) -> None:
    before = fingerprint(model)
    if change.edit is not None:
        change.edit(model)
    assert names(before, fingerprint(model, change)) == {change.changes}


@pytest.mark.parametrize(("change", "fields"), SEVERAL)
def test_a_change_of_several_facts_changes_their_fields(
    model: Path, change: Change, fields: set[str]
) -> None:
    assert names(fingerprint(model), fingerprint(model, change)) == fields


@pytest.mark.parametrize("change", NOTHING, ids=what)
def test_what_decides_nothing_changes_nothing(model: Path, change: Change) -> None:
    before = fingerprint(model)
    if change.edit is not None:
        change.edit(model)
    assert names(before, fingerprint(model, change)) == set()


def test_an_engine_reports_every_field_and_no_other(model: Path) -> None:
    # How KV is stored with loss is a field only of engines that do.
    assert fingerprint(model).fields.keys() - {EXPLAINED} == FIELDS.keys() - {"lossy"}


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (
            Change("", "", edit=edited("config.json", rope_theta=5e5)),
            "model_config_digest: config.rope_parameters.rope_theta stored 10000.0, live 500000.0",
        ),
        (
            Change("", "", config=attribute("model_config.disable_sliding_window", value=True)),
            "model_config_digest: no_sliding_window stored false, live true",
        ),
    ],
)
def test_what_a_configuration_differs_in_is_told_with_both_values(
    model: Path, change: Change, keys: str
) -> None:
    before = fingerprint(model)
    if change.edit is not None:
        change.edit(model)
    (mismatch,) = compare(before, fingerprint(model, change))
    assert mismatch.cause.detail == keys


def test_a_configuration_that_is_too_long_is_known_by_its_digest_alone(model: Path) -> None:
    edited("config.json", long="a" * (16 << 10))(model)
    long = fingerprint(model)
    assert long.fields[EXPLAINED] == {"model_config_digest": {}}
    edited("config.json", long="b" * (16 << 10))(model)
    (mismatch,) = compare(long, fingerprint(model))
    assert mismatch.cause.detail == "model_config_digest"


def test_an_engine_as_vllm_has_it_tells_of_no_knob(model: Path) -> None:
    # Also not of those that vLLM sets itself: other versions may set others.
    assert fingerprint(model).fields["computation"] == {"options": {}, "environment": {}}


def test_storing_with_loss_is_a_fact_and_needs_16_bit_numbers(model: Path) -> None:
    _, facts = read(model, Change("nothing", ""))
    assert facts.stored("") is facts
    assert {**facts.stored("fp8").fields} == {**facts.fields, "lossy": "fp8"}
    _, wide = read(model, Change("float32", "", options={"dtype": "float32"}))
    with pytest.raises(ConfigurationError, match="not of float32"):
        wide.stored("fp8")


def test_k_and_v_are_told_apart_where_it_is_known_how_they_lie() -> None:
    from vllm.v1 import kv_cache_interface as kv  # noqa: PLC0415 - slow

    from sessiond.connector.kvfacts import half_bytes  # noqa: PLC0415 - slow

    sizes: dict[str, Any] = {"block_size": 128, "num_kv_heads": 3, "dtype": torch.bfloat16}
    ordinary = kv.FullAttentionSpec(head_size=64, **sizes)
    wider = kv.FullAttentionSpec(head_size=128, **sizes)
    latent = kv.MLAAttentionSpec(**{**sizes, "num_kv_heads": 1}, head_size=576)

    def halves(*specs: Any) -> int:  # noqa: ANN401 - vLLM's
        groups = [kv.KVCacheGroupSpec([str(place)], spec) for place, spec in enumerate(specs)]
        return half_bytes(kv.KVCacheConfig(8, [], groups))

    assert halves(ordinary) == halves(ordinary, ordinary) == 128 * 64 * 2
    assert halves(latent) == halves(ordinary, wider) == halves(ordinary, latent) == 0


def test_vllm_writes_k_before_v_in_runs_of_that_size() -> None:
    from vllm import _custom_ops as ops  # noqa: PLC0415 - slow
    from vllm.v1 import kv_cache_interface as kv  # noqa: PLC0415 - slow
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa  # noqa: PLC0415 - slow

    from sessiond.connector.kvfacts import half_bytes  # noqa: PLC0415 - slow

    block, heads, size, numbers = 128, 3, 64, torch.bfloat16
    spec = kv.FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size, dtype=numbers)
    half = half_bytes(kv.KVCacheConfig(8, [], [kv.KVCacheGroupSpec(["0"], spec)]))
    page = torch.zeros(spec.page_size_bytes // numbers.itemsize, dtype=numbers)
    k_page, v_page = page.view(1, heads, 2 * block, size).chunk(2, dim=2)
    k, isa = torch.ones((block, heads, size), dtype=numbers), _get_attn_isa(numbers, block, size)
    ops.cpu_attn_reshape_and_cache(k, 2 * k, k_page, v_page, torch.arange(block), isa)
    runs = page.view(-1, half // numbers.itemsize)
    assert [set(run.tolist()) for run in runs] == [{1.0}, {2.0}] * heads


def test_where_a_model_lies_does_not_matter(model: Path) -> None:
    before = fingerprint(model)
    moved = shutil.move(model, model.with_name("moved"))
    assert names(before, fingerprint(Path(moved))) == set()


def test_every_field_has_a_row() -> None:
    tested = {change.changes for change in TABLE} | set().union(*(fields for _, fields in SEVERAL))
    by_version = {"connector_format", "vllm_series", "vllm_version", "torch_version"}
    by_machine = {"platform", "sessiond_version"}
    of_their_own = {"revision", "kv_scales", "model_runner", "lossy"}
    assert tested | by_version | by_machine | of_their_own == FIELDS.keys()


# --- facts with more to them -------------------------------------------------------------


@pytest.mark.parametrize("rope", [LONGROPE, DYNAMIC], ids=["longrope", "dynamic"])
def test_the_length_counts_where_rope_depends_on_it(model: Path, rope: Mapping[str, Any]) -> None:
    short, long = (
        fingerprint(model, Change("", "", {"hf_overrides": rope, "max_model_len": tokens}))
        for tokens in (2048, 8192)
    )
    assert names(short, long) == {"model_config_digest"}


def test_longrope_asks_only_whether_the_length_exceeds_the_original_one(model: Path) -> None:
    one, other = (
        fingerprint(model, Change("", "", {"hf_overrides": LONGROPE, "max_model_len": tokens}))
        for tokens in (6144, 8192)
    )
    assert names(one, other) == set()


def test_a_model_runner_is_a_fact(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(model)

    def take_the_other(_: object) -> None:
        # Not by its variable: on this platform vLLM refuses the other one.
        monkeypatch.setattr("vllm.config.VllmConfig.use_v2_model_runner", True)

    live = fingerprint(model, Change("", "", config=take_the_other))
    assert names(before, live) == {"model_runner"}


def scaled(scale: float) -> Change:
    return Change(
        "",
        "",
        config=attribute("cache_config.cache_dtype", "fp8"),
        layers={name: LayerFacts("CPU_ATTN", ((scale,), (1.0,))) for name in LAYERS},
    )


def test_scales_of_layers_count_where_kv_is_scaled(model: Path) -> None:
    assert names(fingerprint(model, scaled(1.0)), fingerprint(model, scaled(0.25))) == {"kv_scales"}
    plain = replace(scaled(0.25), config=None)
    assert names(fingerprint(model), fingerprint(model, plain)) == set()


def test_layers_that_stay_unscaled_count(model: Path) -> None:
    one = scaled(1.0)
    skipping = replace(
        one,
        config=lambda config: (
            one.config and one.config(config),
            attribute("cache_config.kv_cache_dtype_skip_layers", ["0"])(config),
        ),
    )
    assert names(fingerprint(model, one), fingerprint(model, skipping)) == {"kv_scales"}


def test_which_format_is_loaded_counts_where_there_are_several(model: Path) -> None:
    one, other = (
        Change("", "", config=attribute("load_config.load_format", load_format))
        for load_format in ("safetensors", "pt")
    )
    assert names(fingerprint(model, one), fingerprint(model, other)) == set()
    (model / "pytorch_model.bin").write_bytes(b"other weights")
    assert names(fingerprint(model, one), fingerprint(model, other)) == {"weights_digest"}


def test_a_revision_of_the_hub_is_a_fact(model: Path) -> None:
    first, second = (
        model.parent / "hub" / "models--a--b" / "snapshots" / (letter * 40) for letter in "ab"
    )
    for snapshot in (first, second):
        shutil.copytree(model, snapshot)
    assert names(fingerprint(first), fingerprint(second)) == {"revision"}
    assert fingerprint(first).fields["revision"] == "a" * 40


def test_text_in_a_model_with_vision_has_the_same_facts(model: Path) -> None:
    inner = fingerprint(model)
    outer = Change("", "", config=_with_vision)
    live = fingerprint(model, outer)
    assert names(inner, live) == {"model_config_digest"}
    other_rope = replace(outer, options={"hf_overrides": LINEAR})
    assert names(live, fingerprint(model, other_rope)) == {"model_config_digest"}


def _with_vision(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's
    from transformers import PretrainedConfig  # noqa: PLC0415 - slow

    inner = vllm_config.model_config.hf_text_config
    outer = PretrainedConfig.from_dict(
        {"text_config": inner.to_dict(), "vision_config": {"depth": 2}}
    )
    attribute("model_config.hf_config", outer)(vllm_config)
