from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.engines import EngineInfo
from sessiond.domain.errors import EngineNotFoundError
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import EngineId, SessionId, TenantId
from sessiond.testing.snapshots import SESSION, TENANT, a_fingerprint, some_tokens, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.store.engines import EngineFile
    from sessiond.store.store import Store

INFO = EngineInfo(EngineId("e1"), "", "m", 1, 1.0, 1.0, a_fingerprint(), 1, 1, 1, 1, "0.32.0")


@pytest.fixture
def engine(store: Store) -> Iterator[EngineFile]:
    with store.publish_engine(INFO) as file:
        yield file


def files(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "engines").iterdir())


def a_head(engine_id: str, tenant: TenantId = TENANT, session: SessionId = SESSION) -> Head:
    branch = Branch(some_tokens(40), "", "", 1.0, TurnSplit())
    return Head(tenant, session, engine_id, 1, 0, 1.0, (branch,))


def test_a_mark_is_seen_until_it_is_taken_away(store: Store, engine: EngineFile) -> None:
    assert store.live_engines() == [INFO]
    store.drains.mark("e1", {"began_unix_s": 1.0})
    assert store.live_engines() == [replace(INFO, draining=True)]
    store.drains.mark("e1", {"began_unix_s": 2.0})  # again
    engine.update(replace(INFO, heartbeat_unix_s=9.0))
    assert store.live_engines() == [replace(INFO, heartbeat_unix_s=9.0, draining=True)]
    assert store.drains.unmark("e1")
    assert not store.drains.unmark("e1")
    assert store.live_engines() == [replace(INFO, heartbeat_unix_s=9.0)]


def test_the_engines_file_never_says_it(store: Store, engine: EngineFile) -> None:
    engine.update(replace(INFO, draining=True))
    assert store.live_engines() == [INFO]


def test_a_mark_goes_with_the_engines_end(store: Store, engine: EngineFile) -> None:
    store.drains.mark("e1", {})
    engine.close()
    assert files(store) == []


def test_a_mark_that_a_dead_engine_left_is_removed(store: Store) -> None:
    (store.root / "engines" / "gone.drain").write_bytes(b"{}\n")
    (store.root / "engines" / "gone.drain").chmod(0o600)
    assert store.live_engines() == []
    assert store.remove_dead_engines() == ["gone"]
    assert files(store) == []


@pytest.mark.parametrize("engine_id", ["gone", "../sessions", "", "a" * 65])
def test_only_live_engines_are_marked(store: Store, engine_id: str) -> None:
    with pytest.raises(EngineNotFoundError):
        store.drains.mark(engine_id, {})
    assert not store.drains.unmark(engine_id)
    assert files(store) == []


def test_all_heads_of_an_engine_are_found_and_no_others(store: Store) -> None:
    other = TenantId("umbrella")
    mine = [a_head("e1"), a_head("e1", other), a_head("e1", TENANT, SessionId("s-2"))]
    for head in (*mine, a_head("e2", TENANT, SessionId("s-3")), a_head("e2")):
        store.write_head(head)
    write_snapshot(store)
    (store.root / "sessions" / ("f" * 32)).write_bytes(b"a foreign file")
    found = {(head.tenant, head.session) for head in store.drains.heads_of("e1")}
    assert found == {(head.tenant, head.session) for head in mine}
    assert list(store.drains.heads_of("e3")) == []


def test_an_unreadable_head_costs_nothing_else(store: Store) -> None:
    store.write_head(a_head("e1"))
    store.write_head(a_head("e1", TENANT, SessionId("s-2")))
    path = next(iter(store.root.rglob("e1.head")))
    path.write_bytes(b"no head")
    assert len(list(store.drains.heads_of("e1"))) == 1
