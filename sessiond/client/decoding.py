"""JSON to frozen dataclasses: fields that are not known are left out, types are checked."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sessiond.client.errors import NotSessiondError

_T = TypeVar("_T")


def decode(kind: type[_T], value: object) -> _T:
    """Return *value*, a JSON object, as a *kind*.

    :raises NotSessiondError: a field has another type, or one without a default is missing.
    """
    return cast("_T", _dataclass(kind, value, kind.__name__))


def _dataclass(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - a class
    if not isinstance(value, dict):
        raise _mismatch(where)
    found = {}
    for name, wanted, has_default in _fields(kind):
        if name in value:
            found[name] = _value(wanted, value[name], f"{where}.{name}")
        elif not has_default:
            raise _mismatch(f"{where}.{name}")
    return kind(**found)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any, bool], ...]:  # noqa: ANN401 - a class
    hints = get_type_hints(kind)
    return tuple((one.name, hints[one.name], one.default is not MISSING) for one in fields(kind))


def _value(wanted: Any, value: object, where: str) -> object:  # noqa: ANN401 - any annotation
    if wanted is Any:
        return value
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return None if value is None else _value(_only(parts), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _mismatch(where)
        return tuple(_value(parts[0], one, where) for one in value)
    if is_dataclass(wanted):
        return _dataclass(wanted, value, where)
    return _plain(origin or wanted, value, where)


def _plain(wanted: type[Any], value: object, where: str) -> object:
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise _mismatch(where)
    return value


def _only(parts: tuple[Any, ...]) -> Any:  # noqa: ANN401 - an annotation
    """Return the one of two that is not None."""
    (found,) = (part for part in parts if part is not NoneType)
    return found


def _mismatch(where: str) -> NotSessiondError:
    return NotSessiondError(f"Its answer has no {where} as this client knows it.")
