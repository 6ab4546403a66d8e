"""Sessions, operations, events and idempotency keys in SQLite or PostgreSQL.

Rows never leave this package, domain objects do. Everything here is synchronous.
"""

from sessiond.registry.registry import Registry
from sessiond.registry.restore import Restored, Witness
from sessiond.registry.schema import check_schema, current_revision, newest_revision, upgrade
from sessiond.registry.sessions import Page, SessionChanges

__all__ = [
    "Page",
    "Registry",
    "Restored",
    "SessionChanges",
    "Witness",
    "check_schema",
    "current_revision",
    "newest_revision",
    "upgrade",
]
