from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessiond.testing.postgres import PostgresServer, postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
