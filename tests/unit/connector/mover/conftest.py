from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.testing.mover_rig import MoverRig, make_hello

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["in process", "process"])
def rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MoverRig]:
    folder = tmp_path_factory.mktemp("rig")
    rig = MoverRig(folder, make_hello(folder), in_process=request.param == "in process")
    yield rig
    rig.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[MoverRig]:
    """A mover in this process with a store of its own."""
    rig = MoverRig(tmp_path, make_hello(tmp_path), in_process=True)
    yield rig
    rig.close()


@pytest.fixture
def session() -> str:
    return f"s-{next(_numbers)}"
