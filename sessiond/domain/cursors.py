"""Where a reader of events is: the last event that it has seen.

Numbers of events begin again in a registry that was lost and built anew, come back to an earlier
one in a restored copy, and the last ones may be given again after a power cut. A cursor therefore
has a mark of the event itself: where another event has this number now, or none, the reader's
place is lost, and it is told so instead of missing what came before that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from sessiond.domain.session import Event

#: The largest number that an event can have.
MAX_EVENT_ID: Final = 2**63 - 1
_MARK_BYTES: Final = 6
_TEXT: Final = re.compile(r"([0-9]{1,19})(?:-([0-9a-f]{12}))?", re.ASCII)


@dataclass(frozen=True)
class Cursor:
    """A place in the events of a tenant."""

    number: int  #: of the event; 0: before the first one
    mark: str = ""  #: of the event; empty: not known

    def __str__(self) -> str:
        return f"{self.number}-{self.mark}" if self.mark else str(self.number)

    def is_of(self, event: Event | None) -> bool:
        """Whether *event*, which has this number now, is the one that was seen."""
        return self.number == 0 or (event is not None and self.mark in ("", mark_of(event)))


#: Before the first event.
START: Final = Cursor(0)


def cursor_of(event: Event | None) -> Cursor:
    """Return the place behind an event; ``None``: the start."""
    return START if event is None else Cursor(event.event_id, mark_of(event))


def mark_of(event: Event) -> str:
    """Return what tells an event from others that may have its number in another registry."""
    at = float(event.at_unix_s).hex()
    facts = "\0".join((event.tenant, event.session_id, event.kind, at))
    return blake2b(facts.encode(), digest_size=_MARK_BYTES).hexdigest()


def parse_cursor(text: str) -> Cursor:
    """Return the cursor that *text* is, or a place by its number alone.

    :raises InvalidInputError: it is neither.
    """
    found = _TEXT.fullmatch(text)
    if found is None or int(found[1]) > MAX_EVENT_ID:
        raise InvalidInputError("A place in the events is a cursor that was told, or a number.")
    return Cursor(int(found[1]), found[2] or "")
