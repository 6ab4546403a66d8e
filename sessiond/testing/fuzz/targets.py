"""All groups of readers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from sessiond.testing.fuzz.base import Target
from sessiond.testing.fuzz.exchanged import MESSAGES, TICKETS
from sessiond.testing.fuzz.sealedfiles import JSON, SEALED
from sessiond.testing.fuzz.segments import CHUNKS, SEGMENTS

TARGETS: Mapping[str, Target] = {
    "segments": SEGMENTS,
    "sealed": SEALED,
    "json": JSON,
    "chunks": CHUNKS,
    "messages": MESSAGES,
    "tickets": TICKETS,
}
