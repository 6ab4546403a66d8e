"""Which kinds of KV groups are supported: one list for refusals, interfaces and documents.

A kind is the name of vLLM's class, exactly, and everything that it says beside sizes: a class that
is derived from a supported one keeps KV in another way, and so may a supported one with an
attribute that no test has seen. ``golden`` means: on the real engine, greedy tokens without
interruption are those after suspend, SIGKILL and resume. What has no such test is refused at start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sessiond.domain.fingerprint import Fingerprint


class Support(StrEnum):
    """What sessiond does with an engine that has this kind of KV group."""

    GOLDEN = "golden"
    REFUSED = "refused"


@dataclass(frozen=True)
class KvKind:
    """One kind of KV group."""

    kind: str  #: vLLM's class name, and in brackets what is unusual about it
    what: str  #: what it is, and a model that has it
    support: Support
    sentence: str  #: why


_GOLDEN, _REFUSED = Support.GOLDEN, Support.REFUSED
_PROVED = "Tokens after suspend, SIGKILL and resume are those without interruption."
_NO_TEST = "It has no golden test."

#: Every kind that vLLM 0.32 has.
KV_KINDS: tuple[KvKind, ...] = (
    KvKind("FullAttentionSpec", "Full attention (Llama, Qwen 3)", _GOLDEN, _PROVED),
    KvKind(
        "SlidingWindowSpec",
        "A sliding window, alone or mixed with full attention (Mistral, Gemma 3)",
        _GOLDEN,
        _PROVED,
    ),
    KvKind(
        "FullAttentionSpec(kv_quant_mode=FP8_PER_TENSOR)",
        "Full attention with an FP8 KV cache (--kv-cache-dtype fp8)",
        _GOLDEN,
        _PROVED,
    ),
    KvKind("MLAAttentionSpec", "Multi-head latent attention (DeepSeek V2, V3)", _GOLDEN, _PROVED),
    KvKind("SlidingWindowMLASpec", "Latent attention with a window", _REFUSED, _NO_TEST),
    KvKind(
        "MambaSpec",
        "State of Mamba or linear attention (Qwen3-Next, Jamba)",
        _REFUSED,
        "Its state is one for the whole context, not one for each chunk of it.",
    ),
    KvKind("ChunkedLocalAttentionSpec", "Attention inside chunks (Llama 4)", _REFUSED, _NO_TEST),
    KvKind("SinkFullAttentionSpec", "Full attention with sink tokens", _REFUSED, _NO_TEST),
    KvKind("RSWASpec", "A window over generated tokens only", _REFUSED, _NO_TEST),
    KvKind("CrossAttentionSpec", "Cross attention (Whisper)", _REFUSED, _NO_TEST),
    KvKind("EncoderOnlyAttentionSpec", "An encoder alone", _REFUSED, "It keeps no KV."),
    KvKind("CircularBufferSpec", "Keys that wait to be compressed", _REFUSED, _NO_TEST),
    KvKind("HiddenStateCacheSpec", "Hidden states for extraction", _REFUSED, _NO_TEST),
    KvKind("HiSparseHotSpec", "The hot part of sparse attention", _REFUSED, _NO_TEST),
    KvKind("HiSparseResidentSpec", "The resident part of sparse attention", _REFUSED, _NO_TEST),
    KvKind("UniformTypeKVCacheSpecs", "Layers of unequal sizes in one group", _REFUSED, _NO_TEST),
)
#: Sizes and splits, which the fingerprint compares and no kind depends on.
_SIZES = frozenset(
    {
        "type",
        "block_size",
        "block_stride_alignment",
        "dcp_sharded",
        "dtype",
        "head_size",
        "max_tp_shards",
        "num_kv_heads",
    }
)
#: What belongs to a class: without it, it would be another one.
_OWN = {"SlidingWindowSpec": frozenset({"sliding_window"})}
_UNSCALED = frozenset({"auto", "bfloat16", "float16", "half", "float32", "float"})
_BY_KIND = {known.kind: known for known in KV_KINDS}


def kv_kind(kind: str) -> KvKind:
    """Return what is known of a kind; one that is not listed is refused."""
    base = _BY_KIND.get(kind.partition("(")[0])
    what = f"{base.what}, in another form" if base else "Unknown to this version of sessiond"
    return _BY_KIND.get(kind, KvKind(kind, what, _REFUSED, _NO_TEST))


def kind_of(details: Mapping[str, object]) -> str:
    """Return the kind of a KV group.

    :param details: of vLLM's description of it, as the fingerprint has them: ``type``, the name
        of the class, and every attribute that differs from its default
    """
    kind = str(details.get("type"))
    if kv_kind(kind).support is Support.REFUSED:
        return kind
    usual = _SIZES | _OWN.get(kind, frozenset())
    unusual = [
        f"{name}={value}"
        for name, value in sorted(details.items())
        if name not in usual and not _is_implied(name, value, details)
    ]
    return f"{kind}({', '.join(unusual)})" if unusual else kind


def _is_implied(name: str, value: object, details: Mapping[str, object]) -> bool:
    """Whether an attribute says what is so without it: V as large as K, and no scales."""
    if name == "head_size_v":
        return value == details.get("head_size")
    return name == "cache_dtype_str" and value in _UNSCALED


def kinds_of(fingerprint: Fingerprint) -> list[KvKind]:
    """Return the kinds of an engine's KV groups, each once, in the order of the groups."""
    groups = fingerprint.fields.get("kv_groups")
    described = groups if isinstance(groups, list) else []
    kinds = [_described_kind(group) for group in described if isinstance(group, Mapping)]
    return [kv_kind(kind) for kind in dict.fromkeys(kinds)]


def refused_kinds(kinds: Collection[str]) -> list[KvKind]:
    """Return those of an engine's kinds that have no golden test, in the order of their names."""
    found = (kv_kind(kind) for kind in sorted(set(kinds)))
    return [known for known in found if known.support is Support.REFUSED]


def _described_kind(group: Mapping[str, object]) -> str:
    details = group.get("details")
    return kind_of(details) if isinstance(details, Mapping) else str(group.get("kind"))
