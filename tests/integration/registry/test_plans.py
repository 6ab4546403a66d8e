"""Every query is an index lookup, however many sessions there are."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, text

from sessiond.domain.cursors import Cursor
from sessiond.domain.ids import DEFAULT_TENANT, OperationId, SessionId, TenantId
from sessiond.domain.session import Event, OperationKind, OperationStatus
from sessiond.registry import Registry
from sessiond.registry.restore import Witness
from sessiond.testing.values import NOW_UNIX_S, a_session, a_summary, an_operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

SESSIONS = 100_000
OTHERS = 30_000

SUMMARY = json.dumps(asdict(a_summary()))

# The same words in both databases. One session in four belongs to another tenant; one in a
# hundred is pinned, one in fifty is deleted, one in three has no snapshot.
FILL = (
    f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SESSIONS})
    INSERT INTO sessions SELECT CASE WHEN i % 4 = 0 THEN 'other' ELSE 'default' END, 's' || i,
        'model-' || (i % 7), i, i, CASE WHEN i % 50 = 1 THEN i END, NULL, i % 100 = 2,
        CASE WHEN i % 3 > 0 AND i % 50 != 1 THEN 1 END, NULL, '', '', '',
        CASE WHEN i % 1000 = 5 THEN 9 END, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        CASE WHEN i % 10 = 3 THEN i END FROM n""",
    f"UPDATE sessions SET snapshot = '{SUMMARY}' WHERE snapshot_generation = 1",
    """INSERT INTO snapshots SELECT tenant, session_id, 1, snapshot, 77
        FROM sessions WHERE snapshot_generation = 1""",
    f"""INSERT INTO operations SELECT 'op-' || session_id, tenant, session_id, 'suspend',
        CASE WHEN created_unix_s < 1000 THEN 'running' ELSE 'failed' END, 'a',
        {NOW_UNIX_S} + created_unix_s, created_unix_s,
        CASE WHEN created_unix_s < 1000 THEN NULL ELSE 1.5 END, NULL, NULL
        FROM sessions WHERE created_unix_s < {OTHERS}""",
    f"""INSERT INTO events (tenant, session_id, kind, at_unix_s, detail)
        SELECT tenant, session_id, 'created', 1.5, '{{}}'
        FROM sessions WHERE created_unix_s < {OTHERS}""",
    f"""INSERT INTO idempotency_keys SELECT tenant, session_id, '', 'op-' || session_id, 1.5
        FROM sessions WHERE created_unix_s < {OTHERS}""",
    # There are only a few in life; so many, that a scan would show.
    f"""INSERT INTO switches SELECT session_id, '{{}}', 1.5
        FROM sessions WHERE created_unix_s < {OTHERS}""",
)

S, T = DEFAULT_TENANT, SessionId("s77777")
NEW = a_session("new", snapshot=a_summary())
BUSY = a_session("s999")  # has a running operation
LATE_UNIX_S = NOW_UNIX_S + 1_000_000
PLACE = Cursor(77)

CALLS: dict[str, Callable[[Registry], object]] = {
    "check": lambda r: r.check(),
    "create": lambda r: r.create_session(NEW),
    "delete new": lambda r: r.mark_deleted(S, NEW.session_id, NOW_UNIX_S),
    "create again": lambda r: r.create_session(NEW),
    "get": lambda r: r.get_session(S, T),
    "list": lambda r: r.list_sessions(S),
    "list after": lambda r: r.list_sessions(S, after="s5"),
    "list model": lambda r: r.list_sessions(S, model="model-3", after="s5"),
    "list no such model": lambda r: r.list_sessions(S, model="none"),
    "list pinned": lambda r: r.list_sessions(S, pinned=True, after="s5"),
    "list not pinned": lambda r: r.list_sessions(S, pinned=False),
    "list with snapshot": lambda r: r.list_sessions(S, has_snapshot=True, after="s5"),
    "list without snapshot": lambda r: r.list_sessions(S, has_snapshot=False, after="s5"),
    "list with all filters": lambda r: r.list_sessions(
        S, model="model-3", has_snapshot=True, pinned=True
    ),
    "list unknown tenant": lambda r: r.list_sessions(TenantId("nobody"), pinned=True),
    "update": lambda r: r.update_session(S, T, pinned=True),
    "record": lambda r: r.record_snapshot(S, T, a_summary(9)),
    "record found": lambda r: r.record_snapshot(S, T, a_summary(10), 77777.0, lambda: True),
    "snapshots": lambda r: r.list_snapshots(S, T),
    "restore": lambda r: r.restore_session(
        Witness(a_session(SessionId("s4")), 1.0, (a_summary(3),), frozenset({1}), is_guess=False),
        LATE_UNIX_S,
    ),
    "restore deleted": lambda r: r.restore_deleted(S, SessionId("s6"), 2e9, LATE_UNIX_S),
    "delete": lambda r: r.mark_deleted(S, SessionId("s3"), NOW_UNIX_S),
    "delete this one": lambda r: r.mark_deleted(S, SessionId("s9"), NOW_UNIX_S, NOW_UNIX_S),
    "sweep": lambda r: r.sessions_for_sweep([(S, SessionId(f"s{i}")) for i in range(300)]),
    "forget": lambda r: r.forget_snapshots(S, SessionId("s5"), [1], "snapshot_evicted"),
    "by key": lambda r: r.sessions_by_key([(S, SessionId(f"s{i}")) for i in range(300)]),
    "unused": lambda r: r.unused_sessions(1000.0, 900.0),
    "mark away": lambda r: r.mark_away(S, T, NOW_UNIX_S),
    "end away": lambda r: r.end_away(S, SessionId("s33")),
    "end away before": lambda r: r.end_away(S, SessionId("s43"), NOW_UNIX_S),
    "give up away": lambda r: r.give_up_away(1000.0),
    "read": lambda r: r.read_snapshots(S, SessionId("s7")),
    "begin": lambda r: r.begin_operation(an_operation(a_session(T))),
    "begin planned": lambda r: r.begin_operation(
        an_operation(a_session(SessionId("s77778"))), None, 77778.0
    ),
    "begin expired": lambda r: r.begin_operation(
        an_operation(BUSY, created_unix_s=LATE_UNIX_S, kind=OperationKind.DELETE)
    ),
    "renew": lambda r: r.renew_lease(OperationId("op-s2"), "a", LATE_UNIX_S, NOW_UNIX_S),
    "finish": lambda r: r.finish_operation(
        OperationId("op-s2"), "a", OperationStatus.FAILED, None, NOW_UNIX_S
    ),
    "correct": lambda r: r.correct_operation(OperationId("op-s2"), {}, NOW_UNIX_S),
    "operation": lambda r: r.get_operation(S, OperationId("op-s2")),
    "running": lambda r: r.running_operation(S, SessionId("s5"), NOW_UNIX_S),
    "expire": lambda r: r.expire_operations(NOW_UNIX_S + 100),
    "event": lambda r: r.add_event(S, T, "x", NOW_UNIX_S, {}),
    "event once": lambda r: r.add_event_once(Event(0, S, T, "y", NOW_UNIX_S, {})),
    "event again": lambda r: r.add_event_once(Event(0, S, T, "y", NOW_UNIX_S, {})),
    "events": lambda r: r.list_events(S, SessionId("s77"), after=5),
    "tenant's events": lambda r: r.tenant_events(S, after=PLACE),
    "tenant's events of one": lambda r: r.tenant_events(
        S, session_id=SessionId("s77"), after=PLACE
    ),
    "newest event": lambda r: r.newest_event(S),
    "find event": lambda r: r.find_event(S, 77),
    "remember": lambda r: (
        r.remember(S, "new", b"", OperationId("op"), NOW_UNIX_S),
        r.remember(S, "new", b"", OperationId("op"), NOW_UNIX_S),
        r.remember(S, "new", b"", OperationId("op"), NOW_UNIX_S, LATE_UNIX_S),
    ),
    "forget key": lambda r: r.forget(S, "s79"),
    "remove operations": lambda r: r.remove_operations(1.25),
    "set switch": lambda r: r.set_switch("s79", {}, NOW_UNIX_S),
    "set new switch": lambda r: r.set_switch("new", {}, NOW_UNIX_S),
    "revise switch": lambda r: r.revise_switch("s79", lambda value: {**(value or {})}, NOW_UNIX_S),
    "switch": lambda r: r.read_switch("s79"),
    "clear switch": lambda r: r.clear_switch("s79"),
}


def filled(registry: Registry) -> Registry:
    with registry._engine.begin() as connection:
        for statement in FILL:
            connection.execute(text(statement))
    return registry


@contextmanager
def recorded(registry: Registry) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that are sent, without inserts and transaction control."""
    statements: list[tuple[str, Any]] = []

    def record(*call: Any) -> None:  # noqa: ANN401 - as the event says
        _connection, _cursor, statement, parameters, *_ = call
        if re.match("SELECT|UPDATE|DELETE", statement):
            statements.append((statement, parameters))

    event.listen(registry._engine, "before_cursor_execute", record)
    yield statements
    event.remove(registry._engine, "before_cursor_execute", record)


def sqlite_faults(connection: Connection, statement: str, parameters: object) -> list[str]:
    explain = f"EXPLAIN QUERY PLAN {statement}"
    plan = [row[3] for row in connection.exec_driver_sql(explain, parameters)]  # type: ignore[arg-type]
    tables = "sessions|snapshots|operations|events|idempotency_keys|switches"
    bad = re.compile(rf"SCAN ({tables})|TEMP B-TREE|AUTOMATIC")
    return [step for step in plan if bad.search(step)]


def postgresql_faults(connection: Connection, statement: str, parameters: object) -> list[str]:
    explain = f"EXPLAIN (FORMAT JSON) {statement}"
    (plan,) = connection.exec_driver_sql(explain, parameters).scalar_one()  # type: ignore[arg-type]
    return [f"{node['Node Type']}: {node}" for node in nodes(plan["Plan"]) if is_fault(node)]


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


def is_fault(node: dict[str, Any]) -> bool:
    kind = node["Node Type"]
    if kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan"):
        # The index of running operations is as long as these are many: no condition needed.
        return "Index Cond" not in node and node["Index Name"] != "ix_operations_lease"
    # What these two go through, another node of the plan finds.
    if kind in ("Bitmap Heap Scan", "Subquery Scan"):
        return False
    return any(word in kind for word in ("Scan", "Sort", "Join"))


# Of several filters at once, PostgreSQL may join the indexes and sort the few rows left over.
MAY_SORT = "list with all filters"
FAULTS = {"sqlite": sqlite_faults, "postgresql": postgresql_faults}


def test_every_call_uses_indexes_only(registry: Registry) -> None:
    """SQLite has no statistics here, as in life; PostgreSQL collects them by itself in life."""
    filled(registry)
    dialect = registry._engine.dialect.name
    with registry._engine.connect() as connection:
        if dialect == "postgresql":
            connection.execute(text("ANALYZE"))
            connection.commit()
    faults: dict[str, list[str]] = {}
    for name, call in CALLS.items():
        with recorded(registry) as statements:
            call(registry)
        if name == "get" and dialect == "sqlite":  # it is not asked by the engine
            statements.append((registry._lookup._statement, (S, T)))
        assert statements, name
        with registry._engine.connect() as connection:
            found = [FAULTS[dialect](connection, *statement) for statement in statements]
        faults[name] = [
            fault
            for fault in chain.from_iterable(found)
            if name != MAY_SORT or not fault.startswith("Sort")
        ]
    assert {name: found for name, found in faults.items() if found} == {}


def test_every_method_is_covered() -> None:
    names = {name for call in CALLS.values() for name in call.__code__.co_names}
    methods = {name for name in vars(Registry) if not name.startswith("_")}
    assert methods - names == {"open", "close"}


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("SELECT * FROM sessions WHERE updated_unix_s = 1.5", "sessions"),
        ("SELECT * FROM operations ORDER BY owner", "operations"),
    ],
)
def test_a_scan_would_be_found(registry: Registry, statement: str, fault: str) -> None:
    with registry._engine.connect() as connection:
        faults = FAULTS[connection.dialect.name](connection, statement, ())
    assert any(fault in text for text in faults)
