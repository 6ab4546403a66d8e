"""What the connector is told through vLLM's ``kv_connector_extra_config["sessiond"]``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sessiond.domain.errors import ConfigurationError
from sessiond.domain.loss import LOSSY_WAYS

EXTRA_CONFIG_KEY = "sessiond"
_MOST_DEFAULT_THREADS = 4
CODECS = ("auto", "raw", "zstd", "planar-zstd")

#: What each setting means.
SETTING_MEANINGS: Mapping[str, str] = {
    "root": "The store root.",
    "key_file": "The server key.",
    "url": "Where sessiond reaches this engine.",
    "codec": "How chunks are stored: `auto` takes for each segment what pays on this machine; "
    "`raw`, `zstd` and `planar-zstd` are pins.",
    "lossy": "`fp8` stores 16-bit KV as 8-bit floats, with loss, beside `codec` `auto` only; no "
    "other engine loads it, and this one loads no other. What was lost is measured and told.",
    "read_threads": "Threads of the mover that decode what was read; default: as many as cores, "
    "2 to 4; fewer if their memory does not fit.",
    "write_threads": "Threads of the mover that encode and write, at low priority; default: one "
    "more than cores, at most 4; fewer if their memory does not fit.",
    "mover_memory_bytes": "What the mover may take in memory beside the shared RAM tier. An engine "
    "whose chunks need more does not start, and says how much they need.",
    "plan_deadline_s": "Until a request's KV is promised; while others make room for it, longer.",
    "job_deadline_s": "For one read or write job of the mover; without an answer, or progress, "
    "it is replaced.",
    "hold_deadline_s": "For requests that wait for a suspend or resume to settle.",
    "segment_limit_bytes": "A suspend begins another segment beyond this size.",
    "free_space_floor_bytes": "What suspends leave free of the disk; default: 2 %, at most 1 GiB.",
    "launch": "Names what started this engine; `sessiond engine` finds it again by it.",
    "allow_weight_updates": "Persist although weights could change in place.",
    "raise_in": "Guarded functions that raise on purpose, for fault tests.",
}


def default_read_threads() -> int:
    """Return as many threads as cores: reading ahead is done by threads of its own."""
    return max(2, min(_MOST_DEFAULT_THREADS, os.cpu_count() or 1))


def _default_write_threads() -> int:
    """Return enough threads to keep every core busy while one of them waits for the disk."""
    return min(_MOST_DEFAULT_THREADS, 1 + (os.cpu_count() or 1))


@dataclass(frozen=True)
class ConnectorSettings:
    """Settings of the data plane, normalised once; :data:`SETTING_MEANINGS` says what they are."""

    root: Path
    key_file: Path
    url: str = ""
    codec: str = "auto"
    lossy: str = ""
    read_threads: int = field(default_factory=default_read_threads)
    write_threads: int = field(default_factory=_default_write_threads)
    mover_memory_bytes: int = 256 << 20
    plan_deadline_s: float = 30.0
    job_deadline_s: float = 60.0
    hold_deadline_s: float = 110.0
    segment_limit_bytes: int = 4 << 30
    free_space_floor_bytes: int | None = None
    launch: str = ""
    allow_weight_updates: bool = False
    raise_in: tuple[str, ...] = ()

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
        read = {name: _parsed(name, str(known[name].type), given[name]) for name in given}
        if read.get("lossy") and read.get("codec", "auto") != "auto":
            raise ConfigurationError("Either 'codec' pins a lossless codec, or 'lossy' is set.")
        return cls(**read)


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


def _room(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number of bytes")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no number above zero")
    return float(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list of names")
    return tuple(_text(name) for name in value)


def _lossy(value: object) -> str:
    if value not in ("", *LOSSY_WAYS):
        raise ValueError(f"{value!r} is none of {', '.join(LOSSY_WAYS)}")
    return _text(value)


def _codec(value: object) -> str:
    if value not in CODECS:
        raise ValueError(f"{value!r} is none of {', '.join(CODECS)}")
    return _text(value)


_PARSERS: Mapping[str, Callable[[object], object]] = {
    "Path": _path,
    "str": _text,
    "bool": _flag,
    "int": _count,
    "int | None": _room,
    "float": _seconds,
    "tuple[str, ...]": _names,
}
_PARSERS_BY_NAME: Mapping[str, Callable[[object], object]] = {"codec": _codec, "lossy": _lossy}
