"""Real processes, real signals. Each test starts the engines that it kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.testing.agent import Agent
from sessiond.testing.model import build_model
from sessiond.testing.stack import Stack

MODELS = Path(__file__).parents[2] / ".cache" / "models"


@pytest.fixture(scope="session")
def model() -> Path:
    return build_model(MODELS)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "stack") as running:
        yield running


@pytest.fixture
def agent(stack: Stack) -> Iterator[Agent]:
    fresh = Agent("agent-1", stack.daemon_port, stack.engine_port)
    yield fresh
    fresh.close()
