"""Where everything lies under a store root. Names only; nothing here touches a disk.

A folder is named by its path components below the root, because folders are opened component
by component (see :class:`sessiond.store.tree.Tree`).
"""

from __future__ import annotations

import re
from typing import TypeAlias

from sessiond.domain.ids import SegmentId

Folder: TypeAlias = tuple[str, ...]

FORMAT_FILE = "FORMAT"
SCRUB_FILE = "scrub.json"
ROOT: Folder = ()
ENGINES: Folder = ("engines",)
SESSIONS: Folder = ("sessions",)
SEGMENTS: Folder = ("segments",)
TMP: Folder = ("tmp",)
QUARANTINE: Folder = ("quarantine",)
#: Made when the first file comes.
CALIBRATIONS: Folder = ("calibration",)
#: In the order in which they are made.
TOP_FOLDERS = (TMP, ENGINES, SESSIONS, SEGMENTS, QUARANTINE)

SESSION_FILE = "session.json"
HEAD_SUFFIX = ".head"
DRAIN_SUFFIX = ".drain"
MANIFEST_SUFFIX = ".manifest"
SEGMENT_SUFFIX = ".seg"
BAD_NOTES_SUFFIX = ".bad"
TMP_SUFFIX = ".tmp"
NOTE_SUFFIX = ".note"
CALIBRATION_SUFFIX = ".json"

# No leading zero: one generation has one name. 18 digits fit 64 bits.
_MANIFEST = re.compile(r"([1-9][0-9]{0,17})\.manifest")
_SEGMENT = re.compile(r"([0-9a-f]{32})\.seg")
_FOLDER_NAME = re.compile(r"[0-9a-f]{32}")
_CALIBRATION = re.compile(r"[0-9a-f]{64}\.json")
_ENGINE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def segment_folder(segment_id: SegmentId) -> Folder:
    """Return the folder of a segment; 256 of them keep each one small."""
    return (*SEGMENTS, segment_id[:2])


def segment_file(segment_id: SegmentId) -> str:
    """Return the segment's file name."""
    return f"{segment_id}{SEGMENT_SUFFIX}"


def bad_notes_file(segment_id: SegmentId) -> str:
    """Return the name of the file that notes the segment's unusable chunks."""
    return f"{segment_id}{BAD_NOTES_SUFFIX}"


def segment_of(file_name: str) -> SegmentId | None:
    """Return the segment that *file_name* holds, or ``None`` if it is no segment's name."""
    match = _SEGMENT.fullmatch(file_name)
    return SegmentId(match[1]) if match else None


def tenant_folder(tenant_name: str) -> Folder:
    """Return the folder of a tenant, given its name from the key ring."""
    return (*SESSIONS, tenant_name)


def session_folder(tenant_name: str, session_name: str) -> Folder:
    """Return the folder of a session, given its names from the key ring."""
    return (*SESSIONS, tenant_name, session_name)


def heads_folder(session: Folder) -> Folder:
    """Return the folder of a session's heads."""
    return (*session, "heads")


def manifest_file(generation: int) -> str:
    """Return the file name of a generation's manifest."""
    return f"{generation}{MANIFEST_SUFFIX}"


def generation_of(file_name: str) -> int | None:
    """Return the generation that *file_name* names, or ``None`` if it is no manifest's name."""
    match = _MANIFEST.fullmatch(file_name)
    return int(match[1]) if match else None


def head_file(engine_id: str) -> str:
    """Return the file name of the head that one engine keeps of a session."""
    return f"{engine_id}{HEAD_SUFFIX}"


def engine_file(engine_id: str) -> str:
    """Return the file name of what an engine tells about itself."""
    return f"{engine_id}.json"


def engine_lock_file(engine_id: str) -> str:
    """Return the name of the file that a live engine holds locked."""
    return f"{engine_id}.lock"


def drain_file(engine_id: str) -> str:
    """Return the name of the mark of an engine that is being drained."""
    return f"{engine_id}{DRAIN_SUFFIX}"


def calibration_file(kind: str) -> str:
    """Return the name of the file of what was measured of a kind of engine, by its digest."""
    return f"{kind}{CALIBRATION_SUFFIX}"


def is_calibration_file(file_name: str) -> bool:
    """Whether *file_name* has the form of such a name."""
    return _CALIBRATION.fullmatch(file_name) is not None


def is_engine_id(text: str) -> bool:
    """Whether *text* may be part of a file name."""
    return _ENGINE_ID.fullmatch(text) is not None


def is_folder_name(text: str) -> bool:
    """Whether *text* has the form of a tenant's or session's folder name."""
    return _FOLDER_NAME.fullmatch(text) is not None
