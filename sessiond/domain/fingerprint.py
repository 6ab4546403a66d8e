"""The facts that must match before KV bytes may be used again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from sessiond.domain.canonical import JsonValue, canonical_json, json_digest
from sessiond.domain.differences import differing
from sessiond.domain.loss import LOSSY_FIELD
from sessiond.domain.reasons import Cause, Reason

#: Raised whenever the meaning of stored KV bytes changes.
CONNECTOR_FORMAT = 1


class FieldClass(StrEnum):
    """What a mismatch of a field means."""

    BYTES = "bytes"  #: never load
    PROMPT = "prompt"  #: no prefetch; the next turn's own tokens decide by prefix
    ADVISORY = "advisory"  #: load, and record


@dataclass(frozen=True)
class _Field:
    field_class: FieldClass
    reason: Reason
    optional: bool = False  #: whether a fingerprint without it is of the usual kind


_BYTES, _PROMPT, _ADVISORY = FieldClass.BYTES, FieldClass.PROMPT, FieldClass.ADVISORY

#: Every field that an engine reports. One that is not listed counts as ``bytes``.
FIELDS: Mapping[str, _Field] = {
    "weights_digest": _Field(_BYTES, Reason.WEIGHTS_MISMATCH),
    "revision": _Field(_BYTES, Reason.REVISION_MISMATCH),
    "code_digest": _Field(_BYTES, Reason.MODEL_CODE_MISMATCH),
    "model_config_digest": _Field(_BYTES, Reason.MODEL_CONFIG_MISMATCH),
    "quantization": _Field(_BYTES, Reason.QUANTIZATION_MISMATCH),
    "model_dtype": _Field(_BYTES, Reason.MODEL_DTYPE_MISMATCH),
    "kv_dtype": _Field(_BYTES, Reason.KV_DTYPE_MISMATCH),
    "kv_scales": _Field(_BYTES, Reason.KV_SCALES_MISMATCH),
    "kv_groups": _Field(_BYTES, Reason.KV_GROUPS_MISMATCH),
    "kv_layout": _Field(_BYTES, Reason.KV_LAYOUT_MISMATCH),
    "chunk_tokens": _Field(_BYTES, Reason.CHUNK_SIZE_MISMATCH),
    "chunk_bytes": _Field(_BYTES, Reason.CHUNK_SIZE_MISMATCH),
    "attention": _Field(_BYTES, Reason.ATTENTION_BACKEND_MISMATCH),
    "model_runner": _Field(_BYTES, Reason.MODEL_RUNNER_MISMATCH),
    "computation": _Field(_BYTES, Reason.COMPUTATION_MISMATCH),
    "parallel": _Field(_BYTES, Reason.PARALLEL_MISMATCH),
    "speculation": _Field(_BYTES, Reason.SPECULATION_MISMATCH),
    "connector_format": _Field(_BYTES, Reason.FORMAT_MISMATCH),
    "vllm_series": _Field(_BYTES, Reason.VLLM_VERSION_MISMATCH),
    LOSSY_FIELD: _Field(_BYTES, Reason.LOSSY_MISMATCH, optional=True),
    "tokenizer_digest": _Field(_PROMPT, Reason.TOKENIZER_MISMATCH),
    "special_tokens": _Field(_PROMPT, Reason.SPECIAL_TOKENS_MISMATCH),
    "chat_template_digest": _Field(_PROMPT, Reason.CHAT_TEMPLATE_MISMATCH),
    "chat_template_arguments": _Field(_PROMPT, Reason.TEMPLATE_ARGUMENTS_MISMATCH),
    "vllm_version": _Field(_ADVISORY, Reason.VLLM_RELEASE_MISMATCH),
    "torch_version": _Field(_ADVISORY, Reason.TORCH_VERSION_MISMATCH),
    "platform": _Field(_ADVISORY, Reason.PLATFORM_MISMATCH),
    "hash_scheme": _Field(_ADVISORY, Reason.HASH_MISMATCH),
    "hash_seed": _Field(_ADVISORY, Reason.HASH_MISMATCH),
    "sessiond_version": _Field(_ADVISORY, Reason.SESSIOND_VERSION_MISMATCH),
}
_UNKNOWN = _Field(_BYTES, Reason.UNKNOWN_FIELD_MISMATCH)

#: The name of what lies behind fields that are digests, by their names: for people only, so it is
#: neither compared nor part of a class's digest. Fingerprints may be without it.
EXPLAINED: Final = "explained"


@dataclass(frozen=True)
class Fingerprint:
    """Named facts about an engine, as JSON values."""

    fields: Mapping[str, JsonValue]  #: never changed: what follows from them is kept

    def digest(self, field_class: FieldClass) -> bytes:
        """Return the SHA-256 of the fields of one class, names included: 32 bytes."""
        if field_class not in self._digests:
            self._digests[field_class] = json_digest(
                {
                    name: value
                    for name, value in self._compared
                    if _field(name).field_class is field_class
                }
            )
        return self._digests[field_class]

    @cached_property
    def _digests(self) -> dict[FieldClass, bytes]:
        return {}

    @cached_property
    def canonical(self) -> Mapping[str, bytes]:
        """The canonical JSON of each field, so that True and 1, or 1 and 1.0, are different."""
        return {name: canonical_json(value) for name, value in self._compared}

    @property
    def _compared(self) -> Iterator[tuple[str, JsonValue]]:
        return (item for item in self.fields.items() if item[0] != EXPLAINED)

    def behind(self, name: str) -> JsonValue:
        """Return what a field is the digest of, where that was kept, or the field itself."""
        explained = self.fields.get(EXPLAINED)
        known = explained.get(name) if isinstance(explained, Mapping) else None
        return known or self.fields.get(name)  # what was too long is empty


@dataclass(frozen=True)
class Mismatch:
    """One field that differs, or that one side lacks (then its value is ``None``)."""

    field: str
    field_class: FieldClass
    cause: Cause


def compare(stored: Fingerprint, live: Fingerprint) -> list[Mismatch]:
    """Return every field in which the two differ, ``bytes`` fields first, in a fixed order."""
    differing = (
        name
        for name in {*stored.canonical, *live.canonical}
        if stored.canonical.get(name) != live.canonical.get(name)
    )
    return [_mismatch(name, stored, live) for name in sorted(differing, key=_order)]


def causes(mismatches: list[Mismatch], field_class: FieldClass) -> list[Cause]:
    """Return the causes of the mismatches of one class."""
    return [mismatch.cause for mismatch in mismatches if mismatch.field_class is field_class]


def _field(name: str) -> _Field:
    return FIELDS.get(name, _UNKNOWN)


def _order(name: str) -> tuple[int, int, str]:
    rank = list(FIELDS).index(name) if name in FIELDS else len(FIELDS)
    return list(FieldClass).index(_field(name).field_class), rank, name


def _mismatch(name: str, stored: Fingerprint, live: Fingerprint) -> Mismatch:
    field = _field(name)
    keys = differing(stored.behind(name), live.behind(name))
    one_sided = name not in stored.fields or name not in live.fields
    lacking = one_sided and not field.optional
    return Mismatch(
        field=name,
        field_class=field.field_class,
        cause=Cause(
            reason=Reason.UNKNOWN_FIELD_MISMATCH if lacking else field.reason,
            detail=f"{name}: {keys}" if keys else name,
            stored=stored.fields.get(name),
            live=live.fields.get(name),
        ),
    )
