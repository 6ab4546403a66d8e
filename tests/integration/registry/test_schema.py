from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from sessiond.domain.errors import ConfigurationError, RegistryUnavailableError
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OperationKind, OperationStatus
from sessiond.registry import (
    Registry,
    check_schema,
    current_revision,
    newest_revision,
    upgrade,
)
from sessiond.registry.dialects import open_engine
from sessiond.registry.models import Base
from sessiond.registry.schema import downgrade
from sessiond.testing.values import NOW_UNIX_S, a_session, an_operation

if TYPE_CHECKING:
    from pathlib import Path

VERSION_TABLE = "alembic_version"
TIME_LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
#: Writes down the limit of statements under which each change of tables begins.
WATCH_LIMITS = (
    "CREATE TABLE seen (value text)",
    """CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS
        $$BEGIN INSERT INTO seen VALUES (current_setting('statement_timeout')); END$$""",
    "CREATE EVENT TRIGGER note ON ddl_command_start EXECUTE FUNCTION note()",
)


def described(url: str) -> dict[str, list[str]]:
    """Return columns, keys, constraints and indexes of every table, as the database sees them."""
    engine = open_engine(url)
    found = inspect(engine)
    tables = {}
    for name in found.get_table_names():
        parts = (
            *found.get_columns(name),
            found.get_pk_constraint(name),
            *found.get_foreign_keys(name),
            *found.get_check_constraints(name),
            *found.get_indexes(name),
        )
        tables[name] = sorted(json.dumps(part, default=str) for part in parts)
    engine.dispose()
    return tables


def run(url: str, statement: str) -> None:
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_an_upgraded_database_has_the_tables_of_the_models(empty_url: str) -> None:
    upgrade(empty_url)
    check_schema(empty_url)
    assert current_revision(empty_url) == newest_revision()
    upgrade(empty_url)  # again: nothing to do
    check_schema(empty_url)


def test_the_migrations_build_exactly_what_the_models_say(empty_url: str) -> None:
    """More than Alembic compares: predicates, checks, collations and names."""
    engine = open_engine(empty_url)
    Base.metadata.create_all(engine)
    by_models = described(empty_url)
    Base.metadata.drop_all(engine)
    engine.dispose()
    upgrade(empty_url)
    by_migrations = described(empty_url)
    del by_migrations[VERSION_TABLE]
    assert by_migrations == by_models


def test_down_and_up_again(empty_url: str) -> None:
    upgrade(empty_url)
    before = described(empty_url)
    downgrade(empty_url, "base")
    assert current_revision(empty_url) is None
    assert set(described(empty_url)) == {VERSION_TABLE}
    upgrade(empty_url)
    assert described(empty_url) == before
    check_schema(empty_url)


def test_rows_survive_the_way_down_and_up(url: str) -> None:
    registry = Registry.open(url)
    session = a_session(
        ttl_s=7.5,
        lost_reason="snapshot_evicted",
        lost_generation=3,
        plan_policy=PlanPolicy.OBJECTIVE,
        objective_s=0.25,
    )
    registry.create_session(session)
    for kind in (OperationKind.RETENTION, OperationKind.SUSPEND):
        operation = an_operation(session, kind=kind)
        registry.begin_operation(operation)
        ended = OperationStatus.SUCCEEDED
        registry.finish_operation(operation.operation_id, operation.owner, ended, None, NOW_UNIX_S)
    registry.close()
    downgrade(url, "0001")
    engine = open_engine(url)
    with engine.begin() as connection:
        kinds = list(connection.scalars(text("SELECT kind FROM operations")))
    engine.dispose()
    assert kinds == ["suspend"]  # code of that revision knows no other kind
    upgrade(url)
    registry = Registry.open(url)
    found = registry.get_session(session.tenant, session.session_id)
    registry.close()
    assert found == replace(
        session, ttl_s=None, lost_reason="", lost_generation=0, plan_policy=None, objective_s=None
    )


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX ix_sessions_model",
        "ALTER TABLE sessions ADD COLUMN surplus INTEGER",
        "DROP TABLE events",
    ],
)
def test_a_difference_is_found(url: str, statement: str) -> None:
    run(url, statement)
    with pytest.raises(ConfigurationError, match="do not fit"):
        check_schema(url)


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    run(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="9999"):
        upgrade(url)


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    def open_new(path: Path) -> str:
        engine = open_engine(f"sqlite:///{path}")
        barrier.wait()
        with engine.connect() as connection:
            mode: str = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        engine.dispose()
        return mode

    barrier = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            path = tmp_path / f"{number}.db"
            assert list(threads.map(open_new, [path] * 4)) == ["wal"] * 4


def test_many_threads_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(upgrade, [empty_url] * 4))  # raises what a thread raised
    check_schema(empty_url)


def test_many_daemons_upgrade_at_once(empty_url: str) -> None:
    program = (
        "import sys; from sessiond.registry import upgrade\n"
        "print('ready', flush=True); input(); upgrade(sys.argv[1])"
    )
    with ExitStack() as ends:
        daemons = [
            ends.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, empty_url],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for _ in range(3)
        ]
        for daemon in daemons:
            assert daemon.stdout
            assert daemon.stdout.readline() == b"ready\n"
        for daemon in daemons:
            assert daemon.stdin
            daemon.stdin.write(b"\n")
            daemon.stdin.flush()
        assert [daemon.wait() for daemon in daemons] == [0, 0, 0]
    check_schema(empty_url)


def test_without_tables_a_registry_opens_and_is_not_ready(empty_url: str) -> None:
    registry = Registry.open(empty_url)
    with pytest.raises(RegistryUnavailableError):
        registry.check()
    upgrade(empty_url)
    registry.check()
    registry.close()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", ConfigurationError),
        ("registry.db", ConfigurationError),
        ("sqlite://", ConfigurationError),
        ("sqlite:///:memory:", ConfigurationError),
        ("mysql://localhost/registry", ConfigurationError),
        ("postgresql://localhost:none/registry", ConfigurationError),
        ("sqlite:////nowhere/at/all/registry.db", RegistryUnavailableError),
        ("postgresql://me:secret@127.0.0.1:1/registry", RegistryUnavailableError),
    ],
)
def test_a_bad_url(url: str, error: type[Exception]) -> None:
    for use in (Registry.open, upgrade, current_revision):
        with pytest.raises(error) as raised:
            use(url)
        assert "secret" not in str(raised.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"not a database " * 1000)
    with pytest.raises(RegistryUnavailableError):
        Registry.open(f"sqlite:///{path}")


def test_a_new_database_is_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    upgrade(url)
    with closing(Registry.open(url)) as registry:
        registry.check()
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes.pop("registry.db") == 0o600
    assert set(modes.values()) <= {0o600}


def test_sqlite_is_set_up_for_several_processes(sqlite_url: str) -> None:
    engine = open_engine(sqlite_url)
    with engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    engine.dispose()
    assert pragmas == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "busy_timeout": 10_000,
        "synchronous": 2,
    }


def test_another_process_that_comes_and_goes_takes_no_log_away(sqlite_url: str) -> None:
    program = (
        "import sys; from contextlib import closing; from sessiond.registry import Registry\n"
        "with closing(Registry.open(sys.argv[1])) as other:\n"
        "    other.set_switch(sys.argv[2], {}, 1.0)"
    )

    def elsewhere(name: str) -> None:
        subprocess.run([sys.executable, "-c", program, sqlite_url, name], check=True)

    engine = open_engine(sqlite_url)
    with closing(Registry.open(sqlite_url)) as registry:
        for name in ("one", "two"):
            with engine.connect(), engine.connect():  # connections of this process come and go
                elsewhere(name)
            assert registry.read_switch(name) == {}
            registry.set_switch(f"{name} here", {}, NOW_UNIX_S)
    engine.dispose()
    with closing(Registry.open(sqlite_url)) as registry:
        assert registry.read_switch("one here") == registry.read_switch("two here") == {}


def test_postgresql_has_time_limits(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    with engine.connect() as connection:
        limits = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in TIME_LIMITS]
    engine.dispose()
    assert limits == ["10s", "30s", "8s"]  # who rests in a transaction goes before others give up


@pytest.mark.usefixtures("patient_database")
def test_a_migration_waits_its_turn_and_gives_up_on_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.registry.migrating.LOCK_TIMEOUT_S", 1)
    engine = open_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE sessions IN ACCESS SHARE MODE"))
        with pytest.raises(RegistryUnavailableError, match="lock timeout"):
            downgrade(postgres_url, "base")
    engine.dispose()
    upgrade(postgres_url)  # each step was done as a whole or not at all
    check_schema(postgres_url)


def test_a_migration_takes_as_long_as_it_needs(empty_postgres_url: str) -> None:
    for statement in WATCH_LIMITS:
        run(empty_postgres_url, statement)
    upgrade(empty_postgres_url)
    engine = open_engine(empty_postgres_url)
    with engine.connect() as connection:
        limits = list(connection.scalars(text("SELECT value FROM seen")))
        connection.rollback()
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "30s"
    engine.dispose()
    assert len(limits) > 10
    assert set(limits) == {"0"}


def test_a_locked_sqlite_file_is_unavailable(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiond.registry.dialects.LOCK_TIMEOUT_S", 0.1)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RegistryUnavailableError, match="locked"):
        upgrade(sqlite_url)
    other.close()
