"""Any value of vLLM's configuration as JSON that is the same in every process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from sessiond.domain.canonical import JsonValue, canonical_json


def plain(value: object) -> JsonValue:
    """Return *value* as JSON: no order of a set, no address and no hash seed shows in it.

    Of a dataclass only what differs from its defaults is told, so that a field which a patch
    version of vLLM adds changes nothing by itself. What has no known form is told by its type
    and by what ``vars`` shows.
    """
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(item) for item in value), key=canonical_json)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str | Enum):
        return _scalar(value)
    return _object(value)


def _scalar(value: Any) -> JsonValue:
    shown: JsonValue = value.name if isinstance(value, Enum) else value
    if isinstance(shown, float) and not math.isfinite(shown):
        return repr(shown)
    if isinstance(shown, str):
        return shown.encode(errors="backslashreplace").decode()
    return shown


def _key(key: object) -> str:
    return key if isinstance(key, str) else canonical_json(plain(key)).decode()


def _object(value: object) -> JsonValue:
    if isinstance(value, PurePath | type | Fraction):
        return str(value)
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if type(value).__module__ == "torch":  # a data type
        return str(value).removeprefix("torch.")
    if is_dataclass(value):
        told = {each.name: getattr(value, each.name, None) for each in _telling(value)}
    else:
        told = dict(getattr(value, "__dict__", {}))
    return {"type": type(value).__qualname__, **{name: plain(item) for name, item in told.items()}}


def _telling(value: Any) -> list[Field[Any]]:
    return [
        each
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name, None) != each.default
    ]
