"""May this snapshot be used in this engine?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.fingerprint import FieldClass, Mismatch, causes, compare
from sessiond.domain.reasons import Cause, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.snapshot import Manifest


@dataclass(frozen=True)
class Compatibility:
    """The comparison of a snapshot with a live engine."""

    mismatches: tuple[Mismatch, ...]
    forbidding: tuple[Cause, ...]  #: its bytes must not be loaded here
    doubting: tuple[Cause, ...]  #: its tokens may no longer mean the same text: no prefetch

    @property
    def loadable(self) -> bool:
        """Whether a request of this engine may be given the snapshot."""
        return not self.forbidding

    @property
    def prefetchable(self) -> bool:
        """Whether the snapshot may be brought in before the next turn is known."""
        return self.loadable and not self.doubting


def check(manifest: Manifest, engine: EngineInfo) -> Compatibility:
    """Compare field by field, and with what the engine says of itself."""
    mismatches = compare(manifest.fingerprint, engine.fingerprint)
    return Compatibility(
        mismatches=tuple(mismatches),
        forbidding=(*causes(mismatches, FieldClass.BYTES), *_surroundings(manifest, engine)),
        doubting=tuple(causes(mismatches, FieldClass.PROMPT)),
    )


def _surroundings(manifest: Manifest, engine: EngineInfo) -> Sequence[Cause]:
    found = []
    if manifest.adapter_digest:
        # No engine lists its adapters yet, so none can be shown to have the stored one.
        found.append(Cause(Reason.ADAPTER_MISMATCH, stored=manifest.adapter_digest))
    if engine.tier_off:
        found.append(Cause(Reason.TIER_OFF, detail=engine.tier_off))
    return found
