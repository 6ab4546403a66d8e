"""Streams of events from daemons that share a registry."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.api.conftest import Node


def next_line(lines: Iterator[str], beginning: str) -> str:
    return next(line for line in lines if line.startswith(beginning))


def test_every_daemon_tells_everything_and_ends_its_streams(node: Node) -> None:
    first, second = node.daemon(shutdown_grace_s="60"), node.daemon(shutdown_grace_s="60")
    with httpx.stream("GET", f"{second.url}/v1/events", timeout=30, trust_env=False) as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": sessiond"
        first.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
        assert next_line(lines, "id: ") == "id: 0"
        last_id = next_line(lines, "id: ").removeprefix("id: ")
        assert next_line(lines, "event: ") == "event: created"
        began_s = time.monotonic()
        os.kill(second.server.pid, signal.SIGTERM)
        list(lines)  # its end is a proper one: nothing is raised
    assert second.server.wait_end(30) == 0
    assert time.monotonic() - began_s < 30

    first.call("PATCH", "/v1/sessions/agent-7", json={"pinned": True})
    headers = {"Last-Event-ID": last_id}
    url = f"{first.url}/v1/events"
    with httpx.stream("GET", url, headers=headers, timeout=30, trust_env=False) as answer:
        assert next_line(answer.iter_lines(), "event: ") == "event: changed"
