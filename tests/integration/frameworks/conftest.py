from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.client import Client
from sessiond.testing.served import ServedWorld, served_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.testing.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    with served_world(tmp_path_factory.mktemp("served")) as served:
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
