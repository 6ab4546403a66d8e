"""The digest of a model's resolved configuration: what the checkpoint says and what overrides it.

From ``hf_config`` and ``hf_text_config`` of the live engine, after ``hf_overrides``: rope, windows,
heads, layers, everything. Left out is what other fields of the fingerprint tell, and what
decides no byte of KV.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sessiond.connector.plain import plain
from sessiond.domain.canonical import JsonValue, canonical_json, json_digest

#: Where the checkpoint lies, who wrote it, and what only training or other tasks look at.
_INCIDENTAL = frozenset(
    {
        "_commit_hash",
        "_model_name_or_path",
        "_name_or_path",
        "id2label",
        "label2id",
        "max_model_len",
        "name_or_path",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "transformers_version",
        "use_cache",
    }
)
# Told by the field for quantization.
_QUANTIZATION = ("quantization_config", "compression_config")
#: Ids of special tokens: they decide what tokens mean, not what KV the tokens have.
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# vLLM's rope of these kinds rotates a position by the same angle whatever length the engine was
# started with (vllm/model_executor/layers/rotary_embedding).
_ROPES_WITHOUT_LENGTH = frozenset(
    {"bailing_mrope", "deepseek_llama_scaling", "deepseek_yarn", "default", "linear", "llama3"}
    | {"mllama4", "mrope", "ntk", "openpangu", "proportional", "yarn"}
)
# Models that ask for the length for something else: Llama 4 tunes the temperature of attention.
_MODELS_WITH_LENGTH = ("llama4",)
# transformers' own layers decide themselves what a length means.
_FOREIGN_LAYERS = "Transformers"
# It is in the manifest of each snapshot, and read with it for each turn.
_MOST_EXPLAINED_BYTES = 16 << 10


def config_digest(model: Any) -> str:
    """Return the digest, as hex, of vLLM's ``ModelConfig``."""
    return json_digest(_config_facts(model)).hex()


def config_explained(model: Any) -> dict[str, JsonValue]:
    """Return what lies behind the digest, for people; empty where that is too long to be kept."""
    facts = _config_facts(model)
    if facts["text"] == facts["config"]:  # as with models of text alone
        del facts["text"]
    return facts if len(canonical_json(facts)) <= _MOST_EXPLAINED_BYTES else {}


def _config_facts(model: Any) -> dict[str, JsonValue]:
    return {
        "architecture": model.architecture,
        "config": _described(model.hf_config),
        "text": _described(model.hf_text_config),
        "no_sliding_window": bool(model.disable_sliding_window),
        "length": length_facts(model),
    }


def has_foreign_layers(model: Any) -> bool:
    """Whether vLLM runs the layers of transformers instead of its own."""
    return bool(model.architecture.startswith(_FOREIGN_LAYERS))


def length_facts(model: Any) -> dict[str, JsonValue]:
    """Return what the length that the engine was started with decides; nothing for most models.

    LongRoPE takes its long factors if the engine's length exceeds the original one, so only
    that comparison counts. Kinds of rope that are not known count the length itself.
    """
    text = model.hf_text_config
    told = [plain(getattr(text, name, None)) for name in ("rope_parameters", "rope_scaling")]
    ropes = [rope for each in told for rope in _ropes(each)]
    kinds = {str(rope.get("rope_type", "default")) for rope in ropes}
    named = str(getattr(text, "model_type", "")).startswith(_MODELS_WITH_LENGTH)
    if named or has_foreign_layers(model):
        return {"max_model_len": model.max_model_len}
    if kinds == {"longrope"} and all("original_max_position_embeddings" in rope for rope in ropes):
        lengths = (int(rope["original_max_position_embeddings"]) for rope in ropes)
        return {"long_rope": [model.max_model_len > original for original in lengths]}
    if kinds <= _ROPES_WITHOUT_LENGTH:
        return {}
    return {"max_model_len": model.max_model_len}


def quantization_digest(model: Any) -> str:
    """Return the digest of how the weights are quantized: what the checkpoint says and what the
    command line adds; empty if nothing does."""
    told = [
        plain(getattr(config, name, None))
        for config in (model.hf_config, model.hf_text_config)
        for name in _QUANTIZATION
    ]
    told.append(plain(getattr(model, "quantization_config", None)))
    unique = sorted({canonical_json(each) for each in told if each})
    return json_digest([each.decode() for each in unique]).hex() if unique else ""


def special_ids(model: Any) -> dict[str, JsonValue]:
    """Return the ids of special tokens that the configuration names."""
    return {name: plain(getattr(model.hf_text_config, name, None)) for name in SPECIAL_IDS}


def _described(config: Any) -> JsonValue:
    # to_dict has everything, resolved; to_diff_dict would leave out what equals the defaults.
    return _without(plain(config), {*_INCIDENTAL, *_QUANTIZATION, *SPECIAL_IDS})


def _without(value: JsonValue, names: set[str]) -> JsonValue:
    """Leave names out, at every depth: a text config inside another has them too."""
    if isinstance(value, Mapping):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(item, names) for item in value]
    return value


def _ropes(value: JsonValue) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of one rope, or of one for each kind of layer."""
    if not isinstance(value, Mapping):
        return
    if "rope_type" in value or not any(isinstance(item, Mapping) for item in value.values()):
        yield value
        return
    for item in value.values():
        yield from _ropes(item)
