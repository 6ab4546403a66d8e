from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sessiond.client import Client
from sessiond.testing.served import ServedWorld, served_world
from sessiond.testing.world import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.testing.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    with served_world(tmp_path_factory.mktemp("served"), limits=PATIENT) as served:
        yield served


@pytest.fixture
def engine(served: ServedWorld) -> Iterator[FakeEngine]:
    listening = served.portal.wrap_async_context_manager(served.world.listening_engine())
    with listening as engine:
        yield engine
        served.world.kill_engine(engine)


@pytest.fixture
def client(served: ServedWorld) -> Iterator[Client]:
    with Client(served.url, retries=0) as client:
        yield client


@dataclass
class Gate:
    """Holds suspends in the engine until it is opened."""

    served: ServedWorld
    event: asyncio.Event

    def open(self) -> None:
        async def set_it() -> None:
            self.event.set()

        self.served.run(set_it)


@pytest.fixture
def gate(served: ServedWorld, engine: FakeEngine) -> Iterator[Gate]:
    """A closed one."""
    gate = Gate(served, asyncio.Event())
    engine.faults.gates["suspend"] = gate.event
    yield gate
    gate.open()


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged by parts of this project."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("sessiond.")]
