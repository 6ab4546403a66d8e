"""What failures of the store mean to users."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from typing import Any

from sessiond.domain.errors import (
    EngineNotFoundError,
    GenerationExistsError,
    SessionNotFoundError,
    SnapshotNotFoundError,
    StoreCorruptError,
    StoreFullError,
    StoreKeyError,
    StoreLateError,
)
from sessiond.domain.reasons import Cause, Reason

logger = logging.getLogger(__name__)

_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (StoreFullError, Reason.STORE_FULL),
    (StoreLateError, Reason.DEADLINE),
    (StoreCorruptError, Reason.SNAPSHOT_CORRUPT),
    (StoreKeyError, Reason.SNAPSHOT_KEY_MISMATCH),
    (SnapshotNotFoundError, Reason.SNAPSHOT_MISSING),
    (SessionNotFoundError, Reason.SESSION_DELETED),
    (GenerationExistsError, Reason.GENERATION_EXISTS),
    (EngineNotFoundError, Reason.ABORTED),
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def cause_of(error: Exception) -> Cause:
    """Return the cause that stands for *error*; one without its own reason is logged."""
    for error_type, reason in _REASONS:
        if isinstance(error, error_type):
            return Cause(reason)
    if isinstance(error, OSError) and error.errno in _FULL:
        return Cause(Reason.STORE_FULL)
    logger.error("the store failed", exc_info=error)
    return Cause(Reason.STORE_FAILED, detail=type(error).__name__)


def as_json(causes: Sequence[Cause]) -> list[dict[str, Any]]:
    """Return causes as messages carry them."""
    return [dict(cause.as_json()) for cause in causes]
