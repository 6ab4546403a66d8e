from __future__ import annotations

import pytest

from sessiond.domain.architectures import (
    KV_KINDS,
    KvKind,
    Support,
    kind_of,
    kinds_of,
    kv_kind,
    refused_kinds,
)
from sessiond.domain.canonical import JsonValue
from sessiond.domain.fingerprint import Fingerprint


def test_each_kind_is_listed_once() -> None:
    names = [known.kind for known in KV_KINDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("known", KV_KINDS, ids=lambda known: known.kind)
def test_each_kind_is_found_and_says_why(known: KvKind) -> None:
    found = kv_kind(known.kind)
    assert found == known
    assert found.what
    assert found.sentence.endswith(".")
    assert (found in refused_kinds([found.kind])) is (found.support is Support.REFUSED)


def test_what_is_not_listed_is_refused() -> None:
    found = kv_kind("TomorrowsSpec")
    assert (found.kind, found.support) == ("TomorrowsSpec", Support.REFUSED)
    kinds = ["TomorrowsSpec", "FullAttentionSpec", "MambaSpec", "MambaSpec"]
    assert [known.kind for known in refused_kinds(kinds)] == ["MambaSpec", "TomorrowsSpec"]


def test_full_attention_is_supported() -> None:
    assert refused_kinds(["FullAttentionSpec"]) == []


FULL: dict[str, JsonValue] = {
    "type": "FullAttentionSpec",
    "block_size": 128,
    "num_kv_heads": 2,
    "head_size": 64,
    "head_size_v": 64,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        (FULL, "FullAttentionSpec"),
        ({**FULL, "max_tp_shards": 4, "block_stride_alignment": 2048}, "FullAttentionSpec"),
        ({**FULL, "head_size_v": 32}, "FullAttentionSpec(head_size_v=32)"),
        ({**FULL, "tomorrow": 1, "also": 2}, "FullAttentionSpec(also=2, tomorrow=1)"),
        ({"type": "SlidingWindowSpec", "sliding_window": 256}, "SlidingWindowSpec"),
        ({**FULL, "sliding_window": 256}, "FullAttentionSpec(sliding_window=256)"),
        ({"type": "MLAAttentionSpec", "cache_dtype_str": "auto"}, "MLAAttentionSpec"),
        (
            {"type": "MLAAttentionSpec", "cache_dtype_str": "fp8_ds_mla"},
            "MLAAttentionSpec(cache_dtype_str=fp8_ds_mla)",
        ),
        ({"type": "MambaSpec", "shapes": [[1]]}, "MambaSpec"),  # refused in every form
        ({"type": "TomorrowsSpec", "any": 1}, "TomorrowsSpec"),
    ],
    ids=str,
)
def test_a_kind_is_a_class_and_what_is_unusual(details: dict[str, object], kind: str) -> None:
    assert kind_of(details) == kind


def test_another_form_of_a_supported_kind_is_refused() -> None:
    (found,) = refused_kinds(["FullAttentionSpec(attention_chunk_size=256)"])
    assert found.what == "Full attention (Llama, Qwen 3), in another form"


def test_an_engines_kinds_are_those_of_its_fingerprint() -> None:
    fp8: dict[str, JsonValue] = {**FULL, "kv_quant_mode": "FP8_PER_TENSOR"}
    groups: list[JsonValue] = [
        {"kind": "FullAttentionSpec", "details": each} for each in (FULL, fp8, FULL)
    ]
    found = kinds_of(Fingerprint({"kv_groups": groups}))
    assert [known.kind for known in found] == [
        "FullAttentionSpec",
        "FullAttentionSpec(kv_quant_mode=FP8_PER_TENSOR)",
    ]
