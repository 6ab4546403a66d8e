"""The store beside a perfect model of it in memory, under random calls and random crashes."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sessiond.domain.errors import GenerationExistsError, SessionNotFoundError
from sessiond.domain.ids import SessionId
from sessiond.store.sessions import SessionRecord
from sessiond.store.store import Store
from sessiond.testing.files import Crash, CrashingOps
from sessiond.testing.snapshots import (
    TENANT,
    SnapshotPlan,
    a_key_ring,
    expected_bytes,
    load_snapshot,
    write_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS = [SessionId("a"), SessionId("b")]
KEYS = a_key_ring()


@dataclass(frozen=True)
class Death:
    """When a process dies, and whether the power goes with it."""

    step: int
    power_failure: bool


DEATHS = st.none() | st.builds(Death, st.integers(0, 40), st.booleans())


@dataclass
class Model:
    """What one session must hold."""

    record: str = "none"
    snapshots: dict[int, SnapshotPlan] = field(default_factory=dict)

    def copy(self) -> Model:
        return Model(self.record, dict(self.snapshots))


class StoreMachine(RuleBasedStateMachine):
    """Each rule does a call on a store that may crash, and says what the model may become."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.models = {session: Model() for session in SESSIONS}

    @initialize()
    def begin(self) -> None:
        self.store = Store.open(self.folder / "root", KEYS)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(
        session=st.sampled_from(SESSIONS),
        chunks=st.integers(1, 4),
        share=st.booleans(),
        reuse=st.booleans(),
        death=DEATHS,
    )
    def suspend(
        self, *, session: SessionId, chunks: int, share: bool, reuse: bool, death: Death | None
    ) -> None:
        model = self.models[session]
        newest = max(model.snapshots, default=0)
        generation = newest if reuse and newest else newest + 1
        plan = SnapshotPlan(generation=generation, chunks=chunks, chunk_bytes=600, session=session)
        parent_plan = model.snapshots.get(newest) if share and generation > newest else None
        shares = parent_plan is not None and parent_plan.chunks <= chunks
        parent = self.store.read_manifest(TENANT, session, newest) if shares else None
        after = model.copy()
        after.snapshots[generation] = plan
        expected: type[Exception] | None = None
        if model.record == "deleted":
            expected = SessionNotFoundError
        elif generation in model.snapshots:
            expected = GenerationExistsError
        self.do(
            session, after, lambda store: write_snapshot(store, plan, parent=parent),
            expected, death,
        )  # fmt: skip

    @rule(
        session=st.sampled_from(SESSIONS),
        name=st.sampled_from(["red", "blue"]),
        create=st.booleans(),
        death=DEATHS,
    )
    def write_record(
        self, *, session: SessionId, name: str, create: bool, death: Death | None
    ) -> None:
        model = self.models[session]
        after = replace(model.copy(), record=name)
        expected = SessionNotFoundError if model.record == "deleted" and not create else None
        record = SessionRecord(TENANT, session, 1.0, 1.0, model=name)
        self.do(
            session, after, lambda store: store.write_session(record, create=create),
            expected, death,
        )  # fmt: skip

    @rule(session=st.sampled_from(SESSIONS), data=st.data(), death=DEATHS)
    def delete_snapshot(self, session: SessionId, data: st.DataObject, death: Death | None) -> None:
        after = self.models[session].copy()
        generation = data.draw(st.sampled_from([*after.snapshots, 99]))
        after.snapshots.pop(generation, None)
        self.do(
            session, after, lambda store: store.delete_snapshot(TENANT, session, generation),
            None, death,
        )  # fmt: skip

    @rule(session=st.sampled_from(SESSIONS), death=DEATHS)
    def delete_session(self, session: SessionId, death: Death | None) -> None:
        after = Model("deleted")
        self.do(
            session, after, lambda store: store.delete_session(TENANT, session),
            None, death,
        )  # fmt: skip

    @rule(death=DEATHS)
    def collect(self, death: Death | None) -> None:
        session = SESSIONS[0]
        self.do(
            session, self.models[session].copy(), lambda store: store.collect(),
            None, death,
        )  # fmt: skip

    def do(
        self,
        session: SessionId,
        after: Model,
        action: Callable[[Store], object],
        expected: type[Exception] | None,
        death: Death | None,
    ) -> None:
        """Do a call; the model becomes *after* if it ended, either of the two if it crashed."""
        store = self.store
        if death is not None:
            ops = CrashingOps(death.step, power_failure=death.power_failure)
            store = Store.open(store.root, KEYS, ops=ops)
        refusals: tuple[type[BaseException], ...] = (Crash, *([expected] if expected else []))
        try:
            action(store)
        except refusals as error:
            if isinstance(error, Crash):
                self.recover(session, [self.models[session], *([] if expected else [after])])
            return
        assert expected is None
        self.models[session] = after

    def recover(self, session: SessionId, allowed: list[Model]) -> None:
        """Start again after a crash."""
        self.store = Store.open(self.store.root, KEYS)
        self.store.sweep_tmp()
        self.store.collect()  # also ends a deletion that was cut
        assert list((self.store.root / "tmp").iterdir()) == []
        found = self.found(session)
        assert found in allowed
        self.models[session] = found

    def found(self, session: SessionId) -> Model:
        """Read the store as a model."""
        record = self.store.read_session(TENANT, session)
        name = "none" if record is None else "deleted" if record.is_tombstone else record.model
        known = {**self.models[session].snapshots}
        snapshots = {}
        for generation in self.store.generations(TENANT, session):
            chunks = len(self.store.read_manifest(TENANT, session, generation).chunks)
            plan = SnapshotPlan(
                generation=generation, chunks=chunks, chunk_bytes=600, session=session
            )
            assert known.get(generation, plan) == plan  # a snapshot never changes
            snapshots[generation] = plan
        return Model(name, snapshots)

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        for session, model in self.models.items():
            assert self.found(session) == model
            for generation, plan in model.snapshots.items():
                manifest = self.store.read_manifest(TENANT, session, generation)
                assert load_snapshot(self.store, manifest) == expected_bytes(plan)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
