"""What an engine tells about itself in its file under the store root."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import EngineId
from sessiond.domain.reasons import Cause, Reason


@dataclass(frozen=True)
class SharedFile:
    """One file below ``/dev/shm``: its name and its inode, since names are used again."""

    name: str
    inode: int


@dataclass(frozen=True)
class ServedAdapter:
    """One LoRA adapter that an engine serves."""

    name: str  #: that requests give as their model
    digest: str = ""  #: of its content; empty while that is not proven
    unproven: str = ""  #: why not, in words; empty while it is proven
    pending: bool = False  #: whether it is a matter of moments until it is, or cannot be

    def cause(self) -> Cause | None:
        """Return why nothing that it computes is kept or used again, if that is so."""
        if self.digest:
            return None
        return Cause(Reason.ADAPTER_UNPROVEN, detail=f"adapter {self.name!r}: {self.unproven}")


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
    tier_off_reason: str = ""  #: the code of that
    attestable: bool = False  #: whether an operator may turn it on again
    resets: int = 0  #: how often its caches were reset
    adapters: tuple[ServedAdapter, ...] = ()
    #: Whether KV of generated tokens can be found again. With sliding windows, vLLM keeps by
    #: default only what the end of each prompt needs.
    keeps_replies: bool = True
    lossy: str = ""  #: how it stores KV with loss; empty: it does not
    launch: str = ""  #: names the 'sessiond engine' that started it; empty: another way
    #: Whether an operator, or its own end, is emptying it; not its file tells, but a mark beside.
    draining: bool = False

    @property
    def is_identified(self) -> bool:
        """Whether its fingerprint is known."""
        return bool(self.fingerprint.fields)

    @property
    def is_pending(self) -> bool:
        """Whether it is a matter of moments until its fingerprint is known."""
        return self.tier_off_reason == Reason.IDENTITY_PENDING

    @property
    def tier_cause(self) -> Cause | None:
        """Why nothing is kept or used again in this engine, if that is so."""
        if not self.tier_off:
            return None
        known = self.tier_off_reason in Reason.__members__.values()
        return Cause(Reason(self.tier_off_reason) if known else Reason.TIER_OFF, self.tier_off)

    def serves(self, model: str) -> bool:
        """Whether requests may name *model*: the engine's own, or one of its adapters."""
        return model == self.model or self.adapter(model) is not None

    def adapter(self, name: str) -> ServedAdapter | None:
        """Return the adapter of this name; ``None`` for the engine's own model, and others."""
        return next((adapter for adapter in self.adapters if adapter.name == name), None)

    def adapter_of(self, digest: str) -> ServedAdapter | None:
        """Return an adapter whose content is proved to be this."""
        proved = (adapter for adapter in self.adapters if adapter.digest)
        return next((adapter for adapter in proved if adapter.digest == digest), None)


#: The tested vLLM range: at least the first, below the second (design §6).
VLLM_RANGE = ((0, 31, 0), (0, 33, 0))
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
