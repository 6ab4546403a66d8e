"""One session by its key: what every turn asks, and waits for."""

from __future__ import annotations

import json
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, select

from sessiond.registry.dialects import is_sqlite, one_look
from sessiond.registry.failures import domain_errors
from sessiond.registry.models import SessionRow
from sessiond.registry.rows import to_session

if TYPE_CHECKING:
    from sqlalchemy import Engine, PoolProxiedConnection

    from sessiond.domain.ids import SessionId, TenantId
    from sessiond.domain.session import Session

_BY_KEY: Final = select(SessionRow.__table__).where(
    SessionRow.tenant == bindparam("tenant"), SessionRow.session_id == bindparam("session_id")
)
_COLUMNS: Final = SessionRow.__table__.columns.keys()


class Lookup:
    """Finds sessions, deleted ones too. Safe to use from several threads.

    SQLite itself takes a tenth of the time that SQLAlchemy takes to ask it, so it is asked
    directly; by a connection of its own, since those of the pool may all wait for a writer.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._one_look = one_look(engine)
        self._is_sqlite = is_sqlite(engine)
        self._statement = str(_BY_KEY.compile(dialect=engine.dialect))
        self._lock = Lock()
        self._connection: PoolProxiedConnection | None = None

    def find(self, tenant: TenantId, session_id: SessionId) -> Session | None:
        """Return a session.

        :raises RegistryUnavailableError: the database does not answer.
        """
        with domain_errors():
            row = self._row(tenant, session_id)
        return None if row is None else to_session(row)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _row(self, tenant: TenantId, session_id: SessionId) -> Any:  # noqa: ANN401 - or None
        if self._is_sqlite:
            with self._lock:
                return self._asked_directly(tenant, session_id)
        with self._one_look.connect() as connection:
            key = {"tenant": tenant, "session_id": session_id}
            return connection.execute(_BY_KEY, key).one_or_none()

    def _asked_directly(self, tenant: TenantId, session_id: SessionId) -> SimpleNamespace | None:
        if self._connection is None:
            self._connection = self._engine.raw_connection()
            self._connection.detach()
        try:
            cursor = self._connection.cursor()
            cursor.execute(self._statement, (tenant, session_id))
            values = cursor.fetchone()
            cursor.close()
        except BaseException:
            self._drop()
            raise
        return None if values is None else _typed(dict(zip(_COLUMNS, values, strict=True)))

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _typed(values: dict[str, Any]) -> SimpleNamespace:
    """Return a row of SQLite's, which knows neither booleans nor JSON."""
    values["pinned"] = bool(values["pinned"])
    if values["snapshot"] is not None:
        values["snapshot"] = json.loads(values["snapshot"])
    return SimpleNamespace(**values)
