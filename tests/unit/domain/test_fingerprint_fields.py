"""One row for each field of the fingerprint: what a change of it alone does and says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sessiond.domain.canonical import JsonValue
from sessiond.domain.fingerprint import FIELDS, FieldClass, Fingerprint, causes, compare
from sessiond.domain.reasons import EXPLANATIONS, Reason

BYTES, PROMPT, ADVISORY = FieldClass.BYTES, FieldClass.PROMPT, FieldClass.ADVISORY


@dataclass(frozen=True)
class Row:
    """A field, its class, the reason that it gives, a value, another one, and a word of the
    sentence that explains it."""

    name: str
    field_class: FieldClass
    reason: Reason
    old: JsonValue
    new: JsonValue
    word: str


GROUPS: list[JsonValue] = [{"kind": "FullAttentionSpec", "page_bytes": 98304}]
TABLE = (
    Row("weights_digest", BYTES, Reason.WEIGHTS_MISMATCH, "aa", "ab", "weights"),
    Row("revision", BYTES, Reason.REVISION_MISMATCH, "c0ffee", "", "revision"),
    Row("code_digest", BYTES, Reason.MODEL_CODE_MISMATCH, "aa", "ab", "trust_remote_code"),
    Row("model_config_digest", BYTES, Reason.MODEL_CONFIG_MISMATCH, "aa", "ab", "rope"),
    Row(
        "quantization",
        BYTES,
        Reason.QUANTIZATION_MISMATCH,
        {"method": None},
        {"method": "fp8"},
        "quantized",
    ),
    Row("model_dtype", BYTES, Reason.MODEL_DTYPE_MISMATCH, "bfloat16", "float16", "data type"),
    # As many bytes for each number, so that no size can tell.
    Row("kv_dtype", BYTES, Reason.KV_DTYPE_MISMATCH, "bfloat16", "float16", "data type"),
    Row(
        "kv_scales",
        BYTES,
        Reason.KV_SCALES_MISMATCH,
        {"kind": "fp8", "layers_digest": "1.0"},
        {"kind": "fp8", "layers_digest": "0.25"},
        "scales",
    ),
    Row("kv_groups", BYTES, Reason.KV_GROUPS_MISMATCH, GROUPS, [*GROUPS, *GROUPS], "groups"),
    # NHD and HND: the same bytes in another order.
    Row("kv_layout", BYTES, Reason.KV_LAYOUT_MISMATCH, "LBNHC", "LBHNC", "layout"),
    Row("chunk_tokens", BYTES, Reason.CHUNK_SIZE_MISMATCH, 128, 256, "chunks"),
    Row("chunk_bytes", BYTES, Reason.CHUNK_SIZE_MISMATCH, 1 << 20, 1 << 21, "chunks"),
    Row(
        "attention",
        BYTES,
        Reason.ATTENTION_BACKEND_MISMATCH,
        {"backends": ["FLASH_ATTN"]},
        {"backends": ["FLASHINFER"]},
        "backend",
    ),
    Row("model_runner", BYTES, Reason.MODEL_RUNNER_MISMATCH, "v1", "v2", "runner"),
    Row(
        "computation",
        BYTES,
        Reason.COMPUTATION_MISMATCH,
        {"options": {}, "environment": {}},
        {"options": {"attention_config.use_non_causal": True}, "environment": {}},
        "environment variables",
    ),
    Row("parallel", BYTES, Reason.PARALLEL_MISMATCH, {"tp": 1}, {"tp": 2}, "ranks"),
    Row(
        "speculation",
        BYTES,
        Reason.SPECULATION_MISMATCH,
        {"method": "none"},
        {"method": "ngram"},
        "speculative",
    ),
    Row("connector_format", BYTES, Reason.FORMAT_MISMATCH, 1, 2, "format"),
    Row("vllm_series", BYTES, Reason.VLLM_VERSION_MISMATCH, "0.32", "0.33", "vLLM version"),
    Row("lossy", BYTES, Reason.LOSSY_MISMATCH, "fp8", None, "lossy"),
    Row("tokenizer_digest", PROMPT, Reason.TOKENIZER_MISMATCH, "aa", "ab", "tokenizer"),
    Row(
        "special_tokens",
        PROMPT,
        Reason.SPECIAL_TOKENS_MISMATCH,
        {"add_bos_token": True},
        {"add_bos_token": False},
        "special tokens",
    ),
    Row("chat_template_digest", PROMPT, Reason.CHAT_TEMPLATE_MISMATCH, "aa", "", "template"),
    Row(
        "chat_template_arguments",
        PROMPT,
        Reason.TEMPLATE_ARGUMENTS_MISMATCH,
        {"arguments": {}},
        {"arguments": {"enable_thinking": False}},
        "arguments",
    ),
    Row("vllm_version", ADVISORY, Reason.VLLM_RELEASE_MISMATCH, "0.31.0", "0.32.1", "release"),
    Row("torch_version", ADVISORY, Reason.TORCH_VERSION_MISMATCH, "2.13", "2.14", "torch"),
    Row("platform", ADVISORY, Reason.PLATFORM_MISMATCH, "H100", "H200", "GPU"),
    Row("hash_scheme", ADVISORY, Reason.HASH_MISMATCH, "sha256", "sha256_cbor", "hash"),
    Row("hash_seed", ADVISORY, Reason.HASH_MISMATCH, "random", "0", "seed"),
    Row("sessiond_version", ADVISORY, Reason.SESSIOND_VERSION_MISMATCH, "0.1", "0.2", "sessiond"),
)
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
STORED = Fingerprint({row.name: row.old for row in TABLE})


def changed(row: Row) -> Fingerprint:
    return Fingerprint({**STORED.fields, row.name: row.new})


def test_no_field_is_without_a_row() -> None:
    assert [row.name for row in TABLE] == list(FIELDS)


@ROWS
def test_a_field_that_changes_alone_is_the_only_mismatch(row: Row) -> None:
    (mismatch,) = compare(STORED, changed(row))
    assert (mismatch.field, mismatch.field_class) == (row.name, row.field_class)
    assert (mismatch.cause.stored, mismatch.cause.live) == (row.old, row.new)


@ROWS
def test_it_is_explained_by_its_own_reason_with_both_values(row: Row) -> None:
    (cause,) = causes(compare(STORED, changed(row)), row.field_class)
    assert cause.reason is row.reason
    told = cause.as_json()
    assert (told["stored"], told["live"]) == (row.old, row.new)
    name, _, keys = str(told["detail"]).partition(": ")
    assert name == row.name
    assert bool(keys) == isinstance(row.old, dict | list)
    assert row.word in str(told["sentence"])
    assert told["hint"]


@ROWS
def test_it_changes_the_digest_of_its_class_and_no_other(row: Row) -> None:
    differ = {each for each in FieldClass if STORED.digest(each) != changed(row).digest(each)}
    assert differ == {row.field_class}


@ROWS
@pytest.mark.parametrize("other", [True, 1, 1.0, "1", None, [], {}])
def test_values_of_other_types_are_never_the_same(row: Row, other: Any) -> None:  # noqa: ANN401
    values: tuple[Any, ...] = (True, 1, 1.0, "1", None, [], {})
    for same in values:
        one = Fingerprint({**STORED.fields, row.name: same})
        two = Fingerprint({**STORED.fields, row.name: other})
        assert bool(compare(one, two)) == (type(same) is not type(other))


@ROWS
def test_a_side_without_the_field_never_matches(row: Row) -> None:
    lacking = Fingerprint({k: v for k, v in STORED.fields.items() if k != row.name})
    for one, two in ((STORED, lacking), (lacking, STORED)):
        (mismatch,) = compare(one, two)
        assert (mismatch.field, mismatch.field_class) == (row.name, row.field_class)
        optional = row.name == "lossy"
        assert mismatch.cause.reason is (row.reason if optional else Reason.UNKNOWN_FIELD_MISMATCH)


def test_no_reason_explains_fields_of_two_classes() -> None:
    classes: dict[Reason, set[FieldClass]] = {}
    for row in TABLE:
        classes.setdefault(row.reason, set()).add(row.field_class)
    assert all(len(found) == 1 for found in classes.values())


def test_advisory_reasons_ask_for_nothing() -> None:
    advisory = {row.reason for row in TABLE if row.field_class is ADVISORY}
    assert {EXPLANATIONS[reason].hint for reason in advisory} == {
        "Nothing needs to be done: the snapshot is used, and the difference is noted."
    }
