from __future__ import annotations

import errno
import logging

import pytest

from sessiond.connector.mover.failures import cause_of
from sessiond.domain.errors import (
    ConfigurationError,
    EngineNotFoundError,
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreInsecureError,
    StoreKeyError,
    StoreVersionError,
)
from sessiond.domain.reasons import Cause, Reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreFullError(), Reason.STORE_FULL),
        (OSError(errno.ENOSPC, "full"), Reason.STORE_FULL),
        (OSError(errno.EDQUOT, "quota"), Reason.STORE_FULL),
        (StoreCorruptError(), Reason.SNAPSHOT_CORRUPT),
        (StoreKeyError(), Reason.SNAPSHOT_KEY_MISMATCH),
        (SnapshotNotFoundError(), Reason.SNAPSHOT_MISSING),
        (SessionNotFoundError(), Reason.SESSION_DELETED),
        (GenerationExistsError(), Reason.GENERATION_EXISTS),
        (EngineNotFoundError(), Reason.ABORTED),
    ],
    ids=repr,
)
def test_what_has_a_reason_of_its_own(error: Exception, reason: Reason) -> None:
    assert cause_of(error) == Cause(reason)


@pytest.mark.parametrize(
    "error",
    [
        StoreError(),
        StoreInsecureError(),
        StoreVersionError(),
        ConfigurationError(),
        OSError(errno.EIO, "broken"),
        OSError("without a number"),
        ValueError("/secret/path"),
    ],
    ids=repr,
)
def test_everything_else_is_a_failed_store(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        cause = cause_of(error)
    assert cause == Cause(Reason.STORE_FAILED, type(error).__name__)
    assert "the store failed" in caplog.text
