"""What the connector is told through vLLM's ``kv_connector_extra_config["sessiond"]``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sessiond.domain.errors import ConfigurationError

EXTRA_CONFIG_KEY = "sessiond"
CODECS = ("auto", "raw", "zstd", "planar-zstd")


@dataclass(frozen=True)
class ConnectorSettings:
    """Settings of the data plane, normalised once."""

    root: Path
    key_file: Path
    url: str = ""  #: where sessiond reaches this engine
    codec: str = "auto"  #: one of :data:`CODECS`
    read_threads: int = 2
    plan_deadline_s: float = 30.0  #: from a request's arrival until its KV is promised
    job_deadline_s: float = 60.0  #: for one read or write job of the mover
    hold_deadline_s: float = 110.0  #: for requests that wait for a suspend or resume to settle
    segment_limit_bytes: int = 4 << 30
    allow_weight_updates: bool = False  #: persist although weights could change in place
    raise_in: tuple[str, ...] = ()  #: guarded functions that raise on purpose (fault tests)

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, Any]) -> ConnectorSettings:
        """Read the settings.

        :raises ConfigurationError: they are missing, unknown or of the wrong kind.
        """
        given = extra_config.get(EXTRA_CONFIG_KEY)
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"kv_connector_extra_config has no '{EXTRA_CONFIG_KEY}' object; "
                "'sessiond engine MODEL --print' shows a complete configuration."
            )
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ConfigurationError(f"Unknown connector settings: {', '.join(unknown)}.")
        if "root" not in given or "key_file" not in given:
            raise ConfigurationError("The connector settings need 'root' and 'key_file'.")
        return cls(**{name: _parsed(name, str(known[name].type), given[name]) for name in given})


def _parsed(name: str, kind: str, value: Any) -> Any:
    try:
        return (_PARSERS_BY_NAME.get(name) or _PARSERS[kind])(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: '~nobody'
        raise ConfigurationError(f"Connector setting {name!r}: {error}.") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _path(value: object) -> Path:
    if not _text(value):
        raise ValueError("the path is empty")
    return Path(_text(value)).expanduser().absolute()


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no whole number above zero")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no number above zero")
    return float(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list of names")
    return tuple(_text(name) for name in value)


def _codec(value: object) -> str:
    if value not in CODECS:
        raise ValueError(f"{value!r} is none of {', '.join(CODECS)}")
    return _text(value)


_PARSERS: Mapping[str, Callable[[object], object]] = {
    "Path": _path,
    "str": _text,
    "bool": _flag,
    "int": _count,
    "float": _seconds,
    "tuple[str, ...]": _names,
}
_PARSERS_BY_NAME: Mapping[str, Callable[[object], object]] = {"codec": _codec}
