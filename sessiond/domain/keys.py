"""Keys derived from the one server key, and the names and salts made with them.

Derivation is HMAC-SHA256 with a purpose as its message (the expand step of RFC 5869 for one
block): a key for one purpose tells nothing about another's.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache

from sessiond.domain.errors import ConfigurationError
from sessiond.domain.ids import SessionId, TenantId

SERVER_KEY_BYTES = 32


@dataclass(frozen=True, repr=False)
class KeyRing:
    """The keys of one store, all derived from its server key (32 bytes)."""

    key_id: bytes  #: 16 bytes; names the server key in files without revealing it
    ticket_key: bytes
    seal_key: bytes
    name_key: bytes
    salt_key: bytes
    response_key: bytes

    @classmethod
    def from_server_key(cls, server_key: bytes) -> KeyRing:
        """Derive all keys.

        :raises ConfigurationError: the server key is not 32 bytes long.
        """
        if len(server_key) != SERVER_KEY_BYTES:
            raise ConfigurationError(f"The server key must be {SERVER_KEY_BYTES} bytes long.")
        return cls(
            key_id=_derive(server_key, "key id")[:16],
            ticket_key=_derive(server_key, "ticket"),
            seal_key=_derive(server_key, "seal"),
            name_key=_derive(server_key, "name"),
            salt_key=_derive(server_key, "salt"),
            response_key=_derive(server_key, "response"),
        )

    def tenant_name(self, tenant: TenantId) -> str:
        """Return the tenant's folder name: 32 hex digits."""
        return _name(self.name_key, "tenant", tenant)

    def session_name(self, tenant: TenantId, session: SessionId) -> str:
        """Return the session's folder name inside its tenant's folder: 32 hex digits."""
        return _name(self.name_key, "session", tenant, session)

    def cache_salt(self, tenant: TenantId, adapter_digest: str = "", lossy: str = "") -> str:
        """Return the ``cache_salt`` that separates a tenant's blocks in VRAM and RAM.

        :param lossy: how the engine stores KV with loss: its blocks are no one's who does not
        """
        lossy_parts = ("lossy", lossy) if lossy else ()
        return _name(self.salt_key, "salt", tenant, adapter_digest, *lossy_parts)


def salt_hash(cache_salt: str) -> str:
    """Return the digest of a cache salt that a ticket carries: 32 hex digits."""
    return hashlib.sha256(cache_salt.encode()).hexdigest()[:32]


def _derive(server_key: bytes, purpose: str) -> bytes:
    return hmac.digest(server_key, f"sessiond/1/{purpose}".encode(), "sha256")


@lru_cache(maxsize=8192)  # each turn asks for the same few several times
def _name(key: bytes, *parts: str) -> str:
    # A length before each part: ("ab", "c") and ("a", "bc") must differ.
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.digest(key, message, "sha256").hex()[:32]
