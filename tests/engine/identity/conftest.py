"""Tests that start engines of their own, each with one fact changed.

They take their time, so `make identity` runs them and `make test` does not.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[IdentityReport]:
    """What the test finds, for the file that SESSIOND_IDENTITY_REPORT names.

    Nothing of a test that fails stays there: a report says no more than was proved.
    """
    found, failed_before = IdentityReport.from_environment(), request.session.testsfailed
    yield found
    if request.session.testsfailed > failed_before:
        found.withdraw()
