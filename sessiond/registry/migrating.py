"""One process at a time migrates, and how long a migration may take."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

#: Other daemons may be in the middle of their migrations when this one starts.
TURN_TIMEOUT_S: Final = 60
#: A migration that waits for a lock makes everybody behind it wait too, so it gives up early. Once
#: it has its locks it may take as long as it needs: an index of a large table takes minutes.
LOCK_TIMEOUT_S: Final = 4
_NO_LIMIT_S: Final = 0
_LOCK_KEY: Final = 0x73657373  # "sess"


@contextmanager
def alone_in_migration(connection: Connection) -> Iterator[None]:
    """Let one process at a time migrate, with the time limits of a migration."""
    if connection.dialect.name == "sqlite":
        with connection.begin():  # takes the write lock; the whole run is one transaction
            yield
        return
    _limit_times(connection, TURN_TIMEOUT_S, TURN_TIMEOUT_S)
    connection.execute(select(func.pg_advisory_lock(_LOCK_KEY)))
    _limit_times(connection, LOCK_TIMEOUT_S, _NO_LIMIT_S)
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(select(func.pg_advisory_unlock(_LOCK_KEY)))
        connection.commit()


def _limit_times(connection: Connection, lock_timeout_s: int, statement_timeout_s: int) -> None:
    connection.execute(text(f"SET lock_timeout = '{lock_timeout_s}s'"))
    connection.execute(text(f"SET statement_timeout = '{statement_timeout_s}s'"))
