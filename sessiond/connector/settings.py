"""What the connector is told through vLLM's ``kv_connector_extra_config["sessiond"]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sessiond.domain.errors import ConfigurationError

EXTRA_CONFIG_KEY = "sessiond"


@dataclass(frozen=True)
class ConnectorSettings:
    """Settings of the data plane, normalised once."""

    root: Path
    key_file: Path
    url: str = ""  #: where sessiond reaches this engine
    codec: str = "auto"  #: ``auto``, ``raw``, ``zstd`` or ``planar-zstd``
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
        try:
            values = {name: _PARSERS[str(known[name].type)](given[name]) for name in given}
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"Connector settings are not valid: {error}.") from error


_PARSERS: Mapping[str, Any] = {
    "Path": lambda value: Path(str(value)).expanduser().absolute(),
    "str": str,
    "bool": bool,
    "int": int,
    "float": float,
    "tuple[str, ...]": tuple,
}
