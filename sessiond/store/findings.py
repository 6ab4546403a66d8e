"""What a verification is asked to do, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sessiond.domain.errors import SnapshotNotFoundError, StoreKeyError, StoreVersionError

if TYPE_CHECKING:
    from sessiond.domain.errors import SessiondError
    from sessiond.domain.ids import TenantId

#: Faults beyond this are counted, not listed.
MAX_LISTED_FAULTS = 10_000
#: Files of another key or version: this process cannot judge them, so they are no damage.
_STRANGE = frozenset({StoreKeyError.code, StoreVersionError.code})
#: The code of what a snapshot needs and is not there.
MISSING_CODE = SnapshotNotFoundError.code


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify."""

    tenant: TenantId | None = None  #: ``None``: all
    sample: float = 1.0  #: share of the chunks that are read, above 0
    repair: bool = False
    note_bad: bool = False  #: note bad chunks, as every other read does; *repair* does so too
    seed: int | None = None  #: of the sample

    @property
    def notes_bad(self) -> bool:
        """Whether bad chunks are noted beside their segments."""
        return self.repair or self.note_bad


@dataclass(frozen=True)
class Owner:
    """Whose something is; empty where nobody can tell."""

    tenant: str = ""
    session: str = ""
    generations: tuple[int, ...] = ()  #: the snapshots that need it


@dataclass(frozen=True)
class Fault:
    """One thing that does not hold."""

    where: str  #: the file, below the store root
    #: ``session``, ``manifest``, ``head``, ``segment``, ``chunk``, ``notes``, ``engine``; or
    #: ``folder``, where the system refuses to read a session's
    what: str
    why: str
    code: str  #: of the error
    offset_bytes: int | None = None  #: of a chunk
    quarantined_as: str = ""
    owner: Owner = Owner()

    @property
    def is_damage(self) -> bool:
        """Whether something is damaged: not merely of another key or another version."""
        return self.code not in _STRANGE


@dataclass
class VerifyReport:
    """What a verification looked at, and found."""

    sessions: int = 0
    tombstones: int = 0
    snapshots: int = 0
    heads: int = 0
    segments: int = 0
    unreferenced_segments: int = 0  #: the collection's business
    chunks: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0  #: read from segments
    chunks_skipped: int = 0  #: left out by the sample
    damaged: int = 0
    strange: int = 0  #: files of another key or version
    quarantined: int = 0
    notes_removed: int = 0
    leftovers_removed: int = 0
    faults: list[Fault] = field(default_factory=list)  #: the first ones

    @property
    def is_clean(self) -> bool:
        """Whether everything that was looked at holds."""
        return not self.damaged and not self.strange

    def add(self, fault: Fault) -> None:
        """Count a fault, and list it if there is room."""
        if fault.is_damage:
            self.damaged += 1
        else:
            self.strange += 1
        self.quarantined += bool(fault.quarantined_as)
        if len(self.faults) < MAX_LISTED_FAULTS:
            self.faults.append(fault)


def fault_of(  # noqa: PLR0913 - the parts of a fault
    where: tuple[str, ...],
    what: str,
    error: SessiondError,
    *,
    owner: Owner = Owner(),
    offset_bytes: int | None = None,
    quarantined_as: str = "",
) -> Fault:
    """Return the fault that *error* tells of the file *where*, given by its path's parts."""
    return Fault(
        "/".join(where), what, error.message, error.code, offset_bytes, quarantined_as, owner
    )
