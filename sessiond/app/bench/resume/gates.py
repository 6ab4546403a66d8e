"""What a resume must reach (the design's table), beside what it reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VS_RECOMPUTE, VS_FS = "resume_vs_recompute", "resume_vs_vllm_fs"
VS_LMCACHE, VS_FLOOR = "resume_vs_lmcache", "resume_vs_floor"
STORED = "stored_vs_raw"
_MUST: Mapping[str, tuple[float, str]] = {
    VS_RECOMPUTE: (1 / 40, "resume to first token, to a full recompute"),
    VS_FLOOR: (1.3, "resume, to the VRAM-cached time + stored bytes at the device's read rate"),
    VS_FS: (0.9, "resume, to vLLM's own fs tier over the same copy worker"),
    VS_LMCACHE: (0.8, "resume, to LMCache in MP mode on the local disk"),
    STORED: (0.70, "bytes on disk, to raw KV bytes"),
}


@dataclass(frozen=True)
class Gate:
    """One row."""

    name: str
    what: str
    must: float  #: at most
    measured: float | None
    met: bool | None
    reason: str = ""  #: why it was not measured


def gates(measured: Mapping[str, float | None], reasons: Mapping[str, str]) -> list[Gate]:
    """Return all rows."""
    return [
        Gate(
            name,
            what,
            must,
            value := measured.get(name),
            None if value is None else value <= must,
            "" if value is not None else reasons.get(name, "not measured"),
        )
        for name, (must, what) in _MUST.items()
    ]
