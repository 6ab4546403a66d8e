"""Tests that start engines of their own, each with one fact changed.

They take their time, so `make identity` runs them and `make test` does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiond.connector.versions import vllm_version
from sessiond.testing.identity_report import IdentityReport

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.identity)


def pytest_sessionfinish(exitstatus: int) -> None:
    """Say of this environment's vLLM whether every test passed."""
    passed = exitstatus == pytest.ExitCode.OK
    IdentityReport.from_environment().version(vllm_version(), passed=passed)


@pytest.fixture(scope="session")
def report() -> IdentityReport:
    """What was found; written to the file that SESSIOND_IDENTITY_REPORT names."""
    return IdentityReport.from_environment()
