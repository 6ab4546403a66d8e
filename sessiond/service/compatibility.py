"""May this snapshot be used in this engine?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.fingerprint import FieldClass, Mismatch, causes, compare
from sessiond.domain.reasons import Cause, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.engines import EngineInfo, ServedAdapter
    from sessiond.domain.snapshot import Manifest


@dataclass(frozen=True)
class Compatibility:
    """The comparison of a snapshot with a live engine."""

    mismatches: tuple[Mismatch, ...]
    forbidding: tuple[Cause, ...]  #: its bytes must not be loaded here
    doubting: tuple[Cause, ...]  #: its tokens may no longer mean the same text: no prefetch
    noted: tuple[Cause, ...]  #: what else differs, and keeps nothing from being used

    @property
    def loadable(self) -> bool:
        """Whether a request of this engine may be given the snapshot."""
        return not self.forbidding

    @property
    def has_other_bytes(self) -> bool:
        """Whether the snapshot itself is what must not be loaded here."""
        return any(one.field_class is FieldClass.BYTES for one in self.mismatches)

    @property
    def prefetchable(self) -> bool:
        """Whether the snapshot may be brought in before the next turn is known."""
        return self.loadable and not self.doubting


def computes(engine: EngineInfo, manifest: Manifest) -> bool:
    """Whether the engine's model, whatever its name, is the one that computed a snapshot."""
    digest = manifest.adapter_digest
    alike = engine.fingerprint.digest(FieldClass.BYTES) == manifest.bytes_digest
    return alike and (not digest or engine.adapter_of(digest) is not None)


def adapter_for(
    engine: EngineInfo, model: str, manifest: Manifest | None = None
) -> ServedAdapter | None:
    """Return the engine's adapter that a session of *model* uses; ``None``: the model itself.

    A session that is for any model goes on with what computed its snapshot.
    """
    if not model and manifest is not None and manifest.adapter_digest:
        return engine.adapter_of(manifest.adapter_digest)
    return engine.adapter(model)


def check(
    manifest: Manifest, engine: EngineInfo, adapter: ServedAdapter | None = None
) -> Compatibility:
    """Compare field by field, and with what the engine says of itself.

    :param adapter: the one of the engine that the request is for; ``None``: its model itself
    """
    mismatches = [
        *_adapter_mismatch(manifest, adapter),
        # One that does not know its own fingerprint yet says so among its surroundings.
        *(compare(manifest.fingerprint, engine.fingerprint) if engine.is_identified else ()),
    ]
    return Compatibility(
        mismatches=tuple(mismatches),
        forbidding=(*causes(mismatches, FieldClass.BYTES), *surroundings(engine, adapter)),
        doubting=tuple(causes(mismatches, FieldClass.PROMPT)),
        noted=tuple(causes(mismatches, FieldClass.ADVISORY)),
    )


def _adapter_mismatch(manifest: Manifest, adapter: ServedAdapter | None) -> Sequence[Mismatch]:
    live_digest = adapter.digest if adapter else ""
    unproven = adapter is not None and not live_digest
    if unproven or manifest.adapter_digest == live_digest:
        return ()
    cause = Cause(
        Reason.ADAPTER_MISMATCH,
        detail=f"adapter {adapter.name!r}" if adapter else "no adapter",
        stored=manifest.adapter_digest or None,
        live=live_digest or None,
    )
    return (Mismatch("adapter", FieldClass.BYTES, cause),)


def surroundings(engine: EngineInfo, adapter: ServedAdapter | None) -> tuple[Cause, ...]:
    """Return why the engine neither keeps nor loads anything, whatever a snapshot has."""
    found = (adapter.cause() if adapter else None, engine.tier_cause)
    return tuple(cause for cause in found if cause is not None)
