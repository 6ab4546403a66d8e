"""What all rings share."""

from __future__ import annotations

import signal
from types import FrameType

import pytest


def pytest_configure() -> None:
    # A plain SIGTERM ends Python at once: fixtures would leave their servers behind.
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    pytest.exit(f"ended by signal {number}", returncode=128 + number)
