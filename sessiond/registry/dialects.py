"""All that differs between SQLite and PostgreSQL; everything else has one code path."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Engine,
    Integer,
    String,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError

from sessiond.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, ColumnElement, Connection
    from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.pool import ConnectionPoolEntry
    from sqlalchemy.types import TypeEngine

    from sessiond.domain.canonical import JsonValue

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT_S: Final = 10
STATEMENT_TIMEOUT_S: Final = 30
#: A daemon that freezes inside a transaction loses its locks before others give up on them. No
#: transaction rests for long by itself: here nothing but queries happens inside one. But a daemon
#: that lives may get no processor for seconds, so it has almost as long as others have patience.
IDLE_IN_TRANSACTION_TIMEOUT_S: Final = 8
POOL_TIMEOUT_S: Final = 10
_WAL_RETRY_S: Final = 0.01

_EVENTS_LOCK_CLASS: Final = 0x65766E74  # "evnt"

#: Execution options of an engine that only reads.
READ_ONLY: Final[dict[str, bool]] = {"sessiond_read_only": True, "postgresql_readonly": True}

#: Rowids are SQLite's automatic numbers, and only a column of type INTEGER is one.
AUTO_ID: Final = BigInteger().with_variant(Integer(), "sqlite")


def text_type(length: int) -> TypeEngine[str]:
    """Return a type for up to *length* characters that sorts by code point everywhere."""
    # A collation of the operating system changes with its updates and would break the indexes.
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def only_where(predicate: ColumnElement[bool]) -> dict[str, Any]:
    """Return the arguments that make an index partial."""
    return {"sqlite_where": predicate, "postgresql_where": predicate}


def open_engine(url: str) -> Engine:
    """Return an engine for *url*; nothing is connected yet.

    :raises ConfigurationError: *url* is no database URL, or not one of SQLite or PostgreSQL.
    """
    parsed = _parse(url)
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite_engine(parsed)
        case "postgresql":
            return _postgresql_engine(parsed)
        case other:
            raise ConfigurationError(f"The registry cannot be kept in {other!r}.")


def is_sqlite(engine: Engine) -> bool:
    """Whether *engine* is one of SQLite: a file, which this process reads by itself."""
    return engine.dialect.name == "sqlite"


def one_look(engine: Engine) -> Engine:
    """Return *engine* for single queries, without round trips that begin and end a transaction."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    return engine.execution_options(**READ_ONLY)


@contextmanager
def begin_unhurried(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that a power cut may undo after its commit, though nothing else can.

    Its commit does not wait for the disk, and does not keep it from what others wait for.
    """
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            with connection.begin():
                connection.execute(text("SET LOCAL synchronous_commit TO off"))
                yield connection
            return
        raw = connection.connection.cursor()  # not by the connection, which would begin
        (before,) = raw.execute("PRAGMA synchronous").fetchone()
        raw.execute("PRAGMA synchronous = NORMAL")
        try:
            with connection.begin():
                yield connection
        finally:
            raw.execute(f"PRAGMA synchronous = {before}")
            raw.close()


def commit_in_turn(connection: Connection, name: str) -> None:
    """Let transactions that say the same *name* commit one after the other, from here on.

    Numbers that a database gives inside it then appear in their order. SQLite has one writer
    at a time anyhow.
    """
    if connection.dialect.name == "postgresql":
        # Names may share a key: then they wait for each other, and nothing else happens.
        key = zlib.crc32(name.encode()) - 2**31
        connection.execute(select(func.pg_advisory_xact_lock(_EVENTS_LOCK_CLASS, key)))


def violated_constraint(error: IntegrityError) -> str | None:
    """Return the name of the constraint or unique index that *error* is about, if told.

    SQLite names the columns instead: ``table.column, table.column`` is returned for it.
    """
    if isinstance(error.orig, sqlite3.Error):
        _, _, columns = str(error.orig).partition("UNIQUE constraint failed: ")
        return columns or None
    diagnosis = getattr(error.orig, "diag", None)
    return diagnosis and diagnosis.constraint_name


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        # The text itself is not shown: it may hold a password.
        raise ConfigurationError("The registry's database URL cannot be read.") from error
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


def _sqlite_engine(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise ConfigurationError("The registry needs a file: sqlite:////path/to/registry.db")
    engine = create_engine(
        url,
        connect_args={"timeout": LOCK_TIMEOUT_S},
        pool_timeout=POOL_TIMEOUT_S,
        json_serializer=_json_text,
    )
    event.listen(engine, "do_connect", _make_private)
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_private(
    _dialect: object, _entry: object, arguments: list[Any], _options: dict[str, Any]
) -> None:
    """Make the file before SQLite would, which lets others read it; its logs take its mode."""
    # Never by opening it: whoever closes a file gives up all locks that his process has on it.
    # SQLite's go then too, and the next process that closes its last connection removes the log
    # that this one goes on writing to.
    with suppress(OSError):  # there is one, or SQLite says better what is wrong
        os.mknod(arguments[0], stat.S_IFREG | 0o600)


def _set_up_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # transactions begin in _begin_sqlite, not in the driver
    cursor = connection.cursor()
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous = FULL")  # an answered delete must survive a power cut
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _use_wal(cursor: DBAPICursor) -> None:
    # Several daemons may open a new file at once. Here SQLite does not wait for a lock by
    # itself, since it would have to give up another one for that.
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: one that read first could no longer wait for it, since
    # SQLite refuses to upgrade a transaction whose snapshot is out of date.
    read_only = connection.get_execution_options().get("sessiond_read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _postgresql_engine(url: URL) -> Engine:
    limits = {
        "statement_timeout": STATEMENT_TIMEOUT_S,
        "lock_timeout": LOCK_TIMEOUT_S,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S,
    }
    options = " ".join(f"-c {name}={limit_s}s" for name, limit_s in limits.items())
    return create_engine(
        url,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": options},
        pool_pre_ping=True,
        pool_timeout=POOL_TIMEOUT_S,
        json_serializer=_json_text,
    )


def _json_text(value: JsonValue) -> str:
    return json.dumps(value, allow_nan=False)  # NaN has no JSON form: PostgreSQL refuses it
