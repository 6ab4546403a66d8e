"""A pause and real daemons: those that run, and those that start later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.api.conftest import Node


def test_a_pause_holds_in_every_daemon_and_over_starts(node: Node) -> None:
    quick = {"sweep_interval_s": "0.1", "idle_timeout_s": "0.1"}
    one = node.daemon(**quick)
    one.call("POST", "/v1/admin/pause", json={"reason": "a backup runs"})
    other = node.daemon(**quick)  # starts in the middle of it
    shown = other.call("GET", "/v1/admin/sweep")
    assert shown["paused"]["reason"] == "a backup runs"
    one.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine():
        one.turn("agent-7")
        time.sleep(1)  # sweeps enough for both
        assert one.call("GET", "/v1/sessions/agent-7")["state"] == "active"
        assert other.call("POST", "/v1/admin/unpause") == {"was_paused": True}
        one.wait_for("/readyz", {"sweeps_paused": False})
        one.wait_for("/v1/sessions/agent-7", {"state": "suspended"})
