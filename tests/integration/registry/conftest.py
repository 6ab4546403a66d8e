from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from sessiond.registry import Registry, dialects, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sessiond.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "template.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    name = postgres.create_database()
    upgrade(postgres.url(name))
    return name


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    shutil.copy(sqlite_template, tmp_path / "registry.db")
    return f"sqlite:///{tmp_path / 'registry.db'}"


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    name = postgres.create_database(postgres_template)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database with today's tables."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    found: str = request.getfixturevalue("empty_postgres_url")
    return found


@pytest.fixture
def patient_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test that gets no processor for a while keep its transactions."""
    monkeypatch.setattr(dialects, "IDLE_IN_TRANSACTION_TIMEOUT_S", 120)


@pytest.fixture
def registry(request: pytest.FixtureRequest, url: str) -> Iterator[Registry]:
    request.getfixturevalue("patient_database")
    registry = Registry.open(url)
    yield registry
    registry.close()
