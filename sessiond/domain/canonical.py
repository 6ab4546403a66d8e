"""Canonical JSON: the same value always gives the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonValue: TypeAlias = (
    "str | int | float | bool | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)


def canonical_json(value: JsonValue) -> bytes:
    """Return *value* as UTF-8 JSON with sorted keys and no blanks.

    :raises ValueError: *value* holds NaN or an infinity, which have no JSON form.
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def json_digest(value: JsonValue) -> bytes:
    """Return the SHA-256 of *value*'s canonical JSON: 32 bytes."""
    return hashlib.sha256(canonical_json(value)).digest()
