"""Ids of responses that say, to us alone, whose they are and which engine remembers them.

vLLM keeps responses in the memory of one API server, under a name that the request may choose.
A name of this form needs no table: it outlives the daemon, and one tenant cannot name another's.

Form: ``resp_`` and hex: 24 digits at random, 16 of the engine, 16 of an HMAC.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sessiond.domain.ids import TenantId
    from sessiond.domain.keys import KeyRing

_FORM = re.compile(r"resp_([0-9a-f]{24})([0-9a-f]{16})([0-9a-f]{16})")


def new_response_id(keys: KeyRing, tenant: TenantId, engine_id: str) -> str:
    """Return a fresh id for a response of *tenant* that this engine computes."""
    named = f"{secrets.token_hex(12)}{_mark(engine_id)}"
    return f"resp_{named}{_mac(keys, tenant, named)}"


def has_form(response_id: str) -> bool:
    """Whether the id looks like one of ours."""
    return _FORM.fullmatch(response_id) is not None


def is_owned(keys: KeyRing, tenant: TenantId, response_id: str) -> bool:
    """Whether the id was given to a response of *tenant*."""
    found = _FORM.fullmatch(response_id)
    if found is None:
        return False
    return hmac.compare_digest(found[3], _mac(keys, tenant, found[1] + found[2]))


def engine_of(response_id: str, engine_ids: Iterable[str]) -> str | None:
    """Return which of the engines computed it; ``None``: none of them."""
    found = _FORM.fullmatch(response_id)
    return next((one for one in engine_ids if found and _mark(one) == found[2]), None)


def _mark(engine_id: str) -> str:
    return hashlib.sha256(engine_id.encode()).hexdigest()[:16]


def _mac(keys: KeyRing, tenant: TenantId, named: str) -> str:
    # A tenant's name has no NUL.
    return hmac.digest(keys.response_key, f"{tenant}\0{named}".encode(), "sha256").hex()[:16]
