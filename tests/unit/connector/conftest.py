from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import FakeScheduler

# No deadline: the machine may be busy for a moment.
settings.register_profile(
    "connector", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("connector")


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    clock = FakeClock()
    with clock.installed():
        yield clock


@pytest.fixture
def movers() -> FakeMovers:
    return FakeMovers()


@pytest.fixture
def vllm(clock: FakeClock, movers: FakeMovers) -> FakeScheduler:
    return FakeScheduler(clock, movers)
