"""Where a fork began, as manifests and session files tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.ids import SessionId
from sessiond.domain.snapshot import Origin
from sessiond.store.fields import Fields

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

#: The field's name in both kinds of files.
FORKED_FROM = "forked_from"


def pack_origin(origin: Origin | None) -> JsonValue:
    """Return the field's value."""
    if origin is None:
        return None
    return {"session": origin.session_id, "generation": origin.generation}


def unpack_origin(fields: Fields) -> Origin | None:
    """Return what the field tells; ``None`` where a session is no fork.

    :raises StoreCorruptError: it is of the wrong type.
    """
    value = fields.later_mapping(FORKED_FROM)
    if value is None:
        return None
    inner = Fields(value)
    return Origin(SessionId(inner.text("session")), inner.count("generation"))
