"""Session files: what the registry must be able to learn again, and tombstones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sessiond.domain.ids import SessionId, TenantId
from sessiond.store import sealed
from sessiond.store.fields import Fields
from sessiond.store.origins import FORKED_FROM, pack_origin, unpack_origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.keys import KeyRing
    from sessiond.domain.snapshot import Origin

#: A longer session file is not looked at.
MAX_SESSION_FILE_BYTES = 256 << 10
_KIND = "session"


@dataclass(frozen=True)
class SessionRecord:
    """One session's file: enough to rebuild its registry row."""

    tenant: TenantId
    session: SessionId
    created_unix_s: float
    updated_unix_s: float
    model: str = ""
    idle_timeout_s: float | None = None
    ttl_s: float | None = None
    pinned: bool = False
    policy: Mapping[str, JsonValue] = field(default_factory=dict)
    deleted_unix_s: float | None = None  #: set in a tombstone, which keeps nothing else
    forked_from: Origin | None = None

    @property
    def is_tombstone(self) -> bool:
        """Whether the session was deleted."""
        return self.deleted_unix_s is not None


def tombstone(tenant: TenantId, session: SessionId, now_unix_s: float) -> SessionRecord:
    """Return what a deleted session leaves: its name, so that nothing late revives it."""
    return SessionRecord(tenant, session, now_unix_s, now_unix_s, deleted_unix_s=now_unix_s)


def pack_session(record: SessionRecord, keys: KeyRing) -> bytes:
    """Return the session's file."""
    values: dict[str, JsonValue] = {
        "tenant": record.tenant,
        "session": record.session,
        "created_unix_s": record.created_unix_s,
        "updated_unix_s": record.updated_unix_s,
        "model": record.model,
        "idle_timeout_s": record.idle_timeout_s,
        "ttl_s": record.ttl_s,
        "pinned": record.pinned,
        "policy": dict(record.policy),
        "deleted_unix_s": record.deleted_unix_s,
        FORKED_FROM: pack_origin(record.forked_from),
    }
    return sealed.pack_json(_KIND, values, keys)


def unpack_session(data: bytes, keys: KeyRing) -> SessionRecord:
    """Read a session's file.

    :raises StoreCorruptError: it is damaged.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    fields = Fields(sealed.unpack_json(data, _KIND, keys))
    return SessionRecord(
        tenant=TenantId(fields.text("tenant")),
        session=SessionId(fields.text("session")),
        created_unix_s=fields.number("created_unix_s"),
        updated_unix_s=fields.number("updated_unix_s"),
        model=fields.text("model"),
        idle_timeout_s=fields.optional_number("idle_timeout_s"),
        ttl_s=fields.optional_number("ttl_s"),
        pinned=fields.flag("pinned"),
        policy=fields.mapping("policy"),
        deleted_unix_s=fields.optional_number("deleted_unix_s"),
        forked_from=unpack_origin(fields),
    )
