"""Identifiers, validated once, at the door."""

from __future__ import annotations

import re
import secrets
from typing import NewType

from sessiond.domain.errors import InvalidSessionIdError, InvalidTenantError

SessionId = NewType("SessionId", str)
TenantId = NewType("TenantId", str)
EngineId = NewType("EngineId", str)
SegmentId = NewType("SegmentId", str)
OperationId = NewType("OperationId", str)

# No '/', '.', NUL, blank or non-ASCII: an id is part of URLs, log lines and shell commands.
# 64 bytes keep it well under every file system's and database's limits.
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEX_32 = re.compile(r"[0-9a-f]{32}")

DEFAULT_TENANT = TenantId("default")


def parse_session_id(text: str) -> SessionId:
    """Return *text* as a session id.

    :raises InvalidSessionIdError: *text* is not 1 to 64 letters, digits, ``_`` or ``-``.
    """
    if not _SLUG.fullmatch(text):
        raise InvalidSessionIdError(f"{_shown(text)} is not a session id.")
    return SessionId(text)


def parse_tenant(text: str) -> TenantId:
    """Return *text* as a tenant name.

    :raises InvalidTenantError: *text* is not 1 to 64 letters, digits, ``_`` or ``-``.
    """
    if not _SLUG.fullmatch(text):
        raise InvalidTenantError(f"{_shown(text)} is not a tenant name.")
    return TenantId(text)


def is_hex_id(text: str) -> bool:
    """Whether *text* has the form of the ids that sessiond makes (32 hex digits)."""
    return _HEX_32.fullmatch(text) is not None


def new_hex_id() -> str:
    """Return a fresh random id of 128 bits as 32 hex digits."""
    return secrets.token_hex(16)


def new_session_id() -> SessionId:
    """Return a fresh session id."""
    return SessionId(f"s-{secrets.token_hex(12)}")


def new_operation_id() -> OperationId:
    """Return a fresh operation id."""
    return OperationId(f"op-{secrets.token_hex(12)}")


def _shown(text: str) -> str:
    # ascii() keeps control characters out of logs and answers.
    shown = ascii(text[:40])
    return shown if len(text) <= 40 else f"{shown}… ({len(text)} characters)"
