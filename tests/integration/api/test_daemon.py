"""The daemon as its own process: real sockets, real signals, a real database and store."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from sessiond.domain.engines import ServedAdapter
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.testing.servers import daemon_server

if TYPE_CHECKING:
    from tests.integration.api.conftest import Daemon, Node

SESSION = "/v1/sessions/agent-7"


def raw(daemon: Daemon, request_line: str) -> str:
    """Send a request that no client library would let through; return the answer."""
    where = urlsplit(daemon.url)
    assert where.hostname
    assert where.port
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        head = (
            f"{request_line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        connection.sendall(head.encode("latin-1"))
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer.decode()


def test_the_whole_story(node: Node) -> None:
    daemon = node.daemon()
    daemon.call("POST", "/v1/sessions", json={"session_id": "agent-7", "model": "smol"})
    with node.engine():
        daemon.turn("agent-7")
        suspended = daemon.call("POST", f"{SESSION}/suspend")
        assert suspended["snapshot"]["tokens_restorable"] == 96
    assert daemon.response("POST", f"{SESSION}/resume").status_code == 503
    assert daemon.call("GET", SESSION)["state"] == "suspended"
    with node.engine():
        assert daemon.call("POST", f"{SESSION}/resume")["outcome"] == "restored"
        answer = daemon.turn("agent-7", 120)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        assert daemon.call("DELETE", SESSION)["manifests"] == 1
    assert list(node.store.root.rglob("*.seg")) == []


def test_a_ticket_may_be_for_an_adapter(node: Node) -> None:
    daemon = node.daemon()
    daemon.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine() as engine:
        poet = ServedAdapter("poet", digest="p" * 64)
        engine.update(adapters=(poet, ServedAdapter("new", unproven="its files are being read")))
        own = daemon.call("POST", f"{SESSION}/ticket", json={})
        poets = daemon.call("POST", f"{SESSION}/ticket", json={"model": "poet"})
        new = daemon.call("POST", f"{SESSION}/ticket", json={"model": "new"})
        assert [told["engine"]["model"] for told in (own, poets, new)] == ["smol", "poet", "new"]
        assert own["cache_salt"] != poets["cache_salt"]
        assert [cause["reason"] for cause in new["causes"]] == ["no_snapshot", "adapter_unproven"]
        (told,) = daemon.call("GET", "/v1/engines")["engines"]
        assert told["adapters"] == [
            {"name": "poet", "digest": "p" * 64, "unproven": ""},
            {"name": "new", "digest": "", "unproven": "its files are being read"},
        ]
        nobodys = daemon.response("POST", f"{SESSION}/ticket", json={"model": "nobody"})
        assert (nobodys.status_code, nobodys.json()["code"]) == (503, "no_engine")
        wrong = daemon.response("POST", f"{SESSION}/ticket", json={"model": 7})
        assert wrong.status_code == 422


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/sessions/../x",
        "GET /v1/sessions/..",
        "POST /v1/sessions/../x/suspend",
        "GET /v1/sessions/a/b",
        "GET /v1/sessions/a%2Fb",
        "GET /v1/sessions/%00",
        "GET /v1/sessions/",
        "DELETE /v1/sessions/%2e%2e%2f%2e%2e%2fetc",
        "POST /v1/sessions//resume",
        "GET /v1/sessions/" + 300 * "x",
        "GET /v1%2Fsessions/a.b",
    ],
)
def test_malformed_ids_as_they_are_on_the_wire(shared: Daemon, line: str) -> None:
    answer = raw(shared, line)
    assert answer.startswith("HTTP/1.1 422 ")
    assert '"code":"invalid_session_id"' in answer


def test_sigterm_ends_it_well(node: Node) -> None:
    daemon = node.daemon()
    os.kill(daemon.server.pid, signal.SIGTERM)
    assert daemon.server.wait_end(20) == 0
    assert "Traceback" not in daemon.server.log_text()


def test_sigterm_lets_a_running_suspend_end(node: Node) -> None:
    daemon = node.daemon(shutdown_grace_s="10")
    daemon.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine() as engine:
        daemon.turn("agent-7")
        engine.faults.slow_s = 1.0
        answers: list[Any] = []
        calling = threading.Thread(
            target=lambda: answers.append(daemon.call("POST", f"{SESSION}/suspend"))
        )
        calling.start()
        while not any(seen.op == "suspend" for seen in engine.seen):
            time.sleep(0.01)
        os.kill(daemon.server.pid, signal.SIGTERM)
        calling.join(20)
        assert daemon.server.wait_end(20) == 0
    assert answers[0]["snapshot"]["generation"] == 1


def test_after_a_kill_in_the_middle_the_manifest_on_disk_decides(node: Node) -> None:
    daemon = node.daemon()
    daemon.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine() as engine:
        daemon.turn("agent-7")
        engine.faults.hangs.add("commit")
        started = daemon.call("POST", f"{SESSION}/suspend?wait=0")
        while not node.store.generations(DEFAULT_TENANT, SessionId("agent-7")):
            time.sleep(0.01)
        daemon.server.kill()

        daemon = node.daemon()
        shown = daemon.call("GET", SESSION)
        assert shown["state"] == "suspended"
        assert shown["snapshot"]["generation"] == 1
        operation = daemon.wait_for(
            f"/v1/operations/{started['operation_id']}", {"status": "failed"}
        )
        assert operation["result"]["code"] == "lease_expired"
        engine.faults.hangs.clear()
        again = daemon.call("POST", f"{SESSION}/suspend")
        assert (again["snapshot"]["generation"], again["rounds"]) == (1, 0)


def test_an_idle_session_is_swept_once_by_two_daemons(node: Node) -> None:
    settings = {"idle_timeout_s": "0.5", "sweep_interval_s": "0.2"}
    first = node.daemon(**settings)
    first.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine() as engine:
        first.turn("agent-7")
        second = node.daemon(**settings)  # finds the session in the store
        second.wait_for(SESSION, {"state": "suspended"})
        time.sleep(0.5)
        assert sum(seen.op == "suspend" for seen in engine.seen) == 1
    kinds = [event["kind"] for event in first.call("GET", f"{SESSION}/events")["events"]]
    assert kinds.count("suspended") == 1


def test_a_client_that_hangs_up_ends_nothing(node: Node) -> None:
    daemon = node.daemon()
    daemon.call("POST", "/v1/sessions", json={"session_id": "agent-7"})
    with node.engine() as engine:
        daemon.turn("agent-7")
        engine.faults.slow_s = 0.5
        where = urlsplit(daemon.url)
        with socket.create_connection((str(where.hostname), int(where.port or 0))) as connection:
            connection.sendall(f"POST {SESSION}/suspend HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            while not any(seen.op == "suspend" for seen in engine.seen):
                time.sleep(0.01)
        assert daemon.wait_for(SESSION, {"state": "suspended"})["snapshot"]["generation"] == 1
        assert engine.aborted == []


def test_without_tokens_it_listens_to_this_machine_only(node: Node) -> None:
    server = daemon_server(
        node.folder / "refused.log", port=0, env={**node.env, "SESSIOND_HOST": "0.0.0.0"}
    )
    with server:
        assert server.wait_end(30) == 2
        assert "SESSIOND_TOKENS" in server.log_text()
        assert not list(node.folder.glob("registry.db"))


def test_a_port_that_is_taken_is_named(node: Node) -> None:
    daemon = node.daemon()
    port = urlsplit(daemon.url).port
    assert port
    with daemon_server(node.folder / "second.log", port=port, env=node.env) as second:
        assert second.wait_end(30) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in second.log_text()
