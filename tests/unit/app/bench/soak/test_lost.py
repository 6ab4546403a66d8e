"""Each way to lose a session is planted once, and found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from sessiond.app.bench.soak import agent as agent_module
from sessiond.app.bench.soak import leftover, lost
from sessiond.app.bench.soak.agent import SoakAgent
from sessiond.app.bench.soak.ledger import Ledger, Promise
from sessiond.app.bench.soak.lost import Found, judge
from sessiond.app.bench.soak.script import Kind, Step, Way, script
from sessiond.client import Cause, Client, ResumeReport
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.testing.served import ServedWorld, served_world

PROMISE = Promise("s", 5.0, generation=2)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (Found(5.0, 2, "restored"), ""),
        (Found(5.0, 3, "warm"), ""),
        (Found(None), "the daemon does not know it"),
        (Found(6.0, 2, "restored"), "it was lost, and another one began under its name"),
        (Found(5.0, 1, "restored"), "snapshot 2 was acknowledged, the newest is 1"),
        (Found(5.0, 2, "recomputed", "no_snapshot"), "cannot be resumed: recomputed, no_snapshot"),
        (Found(5.0, 2, "partial", "mover_failed"), "cannot be resumed: partial, mover_failed"),
        (Found(5.0, 2, "", "internal_error"), "cannot be resumed: refused, internal_error"),
    ],
)
def test_what_was_promised_and_is_not_there_is_told(found: Found, why: str) -> None:
    assert judge(PROMISE, found).endswith(why)
    assert bool(judge(PROMISE, found)) == bool(why)


def test_a_session_that_was_never_suspended_has_no_snapshot_to_lose() -> None:
    assert judge(Promise("s", 5.0), Found(5.0)) == ""


@pytest.mark.parametrize(
    ("outcome", "reasons", "is_whole"),
    [
        ("partial", ["engine_lost_kv"], True),
        ("partial", ["engine_lost_kv", "snapshot_corrupt"], False),
        ("partial", [], False),
        ("recomputed", ["engine_lost_kv"], False),
    ],
)
def test_a_turn_that_died_with_its_engine_was_promised_by_nobody(
    outcome: str,
    reasons: list[str],
    is_whole: bool,  # noqa: FBT001 - a parameter
) -> None:
    causes = tuple(Cause(reason, "", "") for reason in reasons)
    told = ResumeReport("op", "s", outcome, "", causes, "e", 1, 9, 8, 8, 8, 0.1)
    assert lost._lacks_only_what_died(told) == is_whole


class Scene:
    """A service with an engine, and an agent that does what it is told."""

    def __init__(self, served: ServedWorld) -> None:
        self.served, self.ledger = served, Ledger()
        self.agent = SoakAgent("soak-0", served.url, script(1, 0), self.ledger)
        self.client = Client(served.url)
        self._steps = {step.kind: step for step in islice(script(1, 0), 200)}

    def does(self, kind: Kind) -> None:
        step = self._steps[kind]
        self.agent.act(Step(**{**vars(step), "way": Way.STREAMED}))

    def lost(self) -> list[str]:
        return list(lost.lost(self.client, self.ledger.kept()))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(agent_module, "_PAUSE_S", 0.0)
    with serving(tmp_path) as served:
        made = Scene(served)
        yield made
        made.agent.close()
        made.client.close()


@contextmanager
def serving(folder: Path) -> Iterator[ServedWorld]:
    with (
        served_world(folder) as served,
        served.portal.wrap_async_context_manager(served.world.listening_engine()),
    ):
        yield served


def test_what_an_agent_did_is_counted_and_nothing_of_it_is_lost(scene: Scene) -> None:
    for kind in (Kind.TURN, Kind.SUSPEND, Kind.FORK, Kind.RESUME, Kind.TURN, Kind.SUSPEND):
        scene.does(kind)
    assert scene.ledger.refused == {}
    counts = {name: scene.ledger.counts[name] for name in ("turns", "suspends_asked", "forks")}
    assert counts == {"turns": 2, "suspends_asked": 2, "forks": 1}
    assert len(scene.ledger.kept()) == 2
    assert scene.lost() == []

    scene.does(Kind.DELETE)
    assert scene.ledger.counts["deletes"] == 1
    assert len(scene.ledger.kept()) == 1
    promises = scene.ledger.promises.values()
    assert lost.revived(scene.client, promises) == []
    (gone,) = (one for one in promises if one.deleted)
    scene.client.create_session(gone.session_id)
    assert lost.revived(scene.client, promises) == [gone.session_id]


def test_a_session_that_somebody_else_deletes_is_lost(scene: Scene) -> None:
    scene.does(Kind.TURN)
    (promise,) = scene.ledger.kept()
    scene.client.delete_session(promise.session_id)
    scene.does(Kind.SUSPEND)
    assert scene.ledger.lost == [f"{promise.session_id}: a call was answered session_not_found"]
    assert scene.lost() == [f"{promise.session_id}: the daemon does not know it"]
    # The gateway begins a session under the same name; its first life is lost all the same.
    scene.does(Kind.TURN)
    (told,) = scene.lost()
    assert "another one began" in told


def test_a_snapshot_whose_manifest_is_gone_is_lost(scene: Scene) -> None:
    scene.does(Kind.TURN)
    scene.does(Kind.SUSPEND)
    assert scene.lost() == []
    (promise,) = scene.ledger.kept()
    store = scene.served.world.store
    assert leftover.missing(store, [promise]) == []
    store.delete_snapshot(DEFAULT_TENANT, SessionId(promise.session_id), 1)
    (told,) = scene.lost()
    assert told.endswith(
        "its snapshot cannot be resumed: recomputed, snapshot_missing generation 1"
    )
    assert leftover.missing(store, [promise]) == [
        f"{promise.session_id}: snapshot 1 was acknowledged, the store has []"
    ]


def test_a_delete_without_an_answer_is_finished(scene: Scene) -> None:
    scene.does(Kind.TURN)
    (promise,) = scene.ledger.kept()
    promise.deleting = True
    lost.finish_deletes(scene.client, [promise])
    lost.finish_deletes(scene.client, [promise])
    assert promise.deleted
    assert [one.session_id for one in scene.client.list_sessions()] == []
