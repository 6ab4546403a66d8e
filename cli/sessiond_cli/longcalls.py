"""Suspend and resume: calls that last, and that a lost connection does not end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from sessiond.domain.ids import SessionId, new_hex_id

if TYPE_CHECKING:
    from sessiond_cli.daemon import Answer, Daemon, Query

#: One HTTP call waits at most this long, so that proxies in between stay calm.
_ROUND_S: Final = 20.0


def run_long_call(
    daemon: Daemon,
    session_id: SessionId,
    action: str,
    wait_s: float | None,
    query: Query | None = None,
) -> tuple[Answer, bool]:
    """Run *action* for a session and wait for its end, at most *wait_s* if that is given.

    :param query: further parameters of the call
    :return: the report and ``True``, or the operation that still runs and ``False``
    :raises CommandError: it failed, or the daemon does not answer.
    """
    path = f"/v1/sessions/{session_id}/{action}"
    key = f"sessionctl-{new_hex_id()}"
    started_s = time.monotonic()
    while True:
        left_s = _ROUND_S
        if wait_s is not None:
            left_s = max(0.0, min(_ROUND_S, wait_s - (time.monotonic() - started_s)))
        # The same key: the first call begins the operation, the others ask for its end.
        answer, ended = daemon.begin(path, key, left_s, query)
        if ended or left_s < _ROUND_S:
            return answer, ended
