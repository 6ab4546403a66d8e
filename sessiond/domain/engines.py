"""What an engine tells about itself in its file under the store root."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import EngineId


@dataclass(frozen=True)
class SharedFile:
    """One file below ``/dev/shm``: its name and its inode, since names are used again."""

    name: str
    inode: int


@dataclass(frozen=True)
class EngineInfo:
    """One vLLM engine that loads our connector; its id changes at each boot."""

    engine_id: EngineId
    url: str  #: base URL of its HTTP server, without a trailing slash; empty if not told
    model: str  #: the name that requests use
    pid: int
    started_unix_s: float
    heartbeat_unix_s: float
    fingerprint: Fingerprint
    chunk_tokens: int
    chunk_bytes: int
    ram_tier_chunks: int
    max_model_tokens: int
    vllm_version: str
    shared_files: tuple[SharedFile, ...] = ()  #: what SIGKILL would leave behind
    tier_off: str = ""  #: why the snapshot tier is off; empty while it is on


#: The tested vLLM range: at least the first, below the second (design §6).
VLLM_RANGE = ((0, 32, 0), (0, 33, 0))
# Release candidates and development builds were not tested.
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+.*)?", re.ASCII)


def vllm_supported(version: str) -> bool:
    """Whether *version*, such as ``0.32.0`` or ``0.32.1+cpu``, is in the tested range."""
    release = _RELEASE.fullmatch(version)
    if release is None:
        return False
    numbers = tuple(int(number) for number in release.groups())
    return VLLM_RANGE[0] <= numbers < VLLM_RANGE[1]


def vllm_range_text() -> str:
    """Return the tested range for a message."""
    first, beyond = (".".join(map(str, version)) for version in VLLM_RANGE)
    return f">={first}, <{beyond}"
