from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from sessiond.domain.keys import KeyRing
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.fake_engine import FakeEngine
from sessiond.testing.servers import Server, daemon_server, free_port
from sessiond.testing.world import text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Node:
    """One machine: a store, fake engines behind real HTTP, real daemons."""

    folder: Path
    store: Store
    env: dict[str, str]
    started: list[Server] = field(default_factory=list)

    def daemon(self, **settings: str) -> Daemon:
        """Start ``sessiond serve`` and wait until it is ready."""
        port = free_port()
        changed = {f"SESSIOND_{name.upper()}": value for name, value in settings.items()}
        log = self.folder / f"daemon-{port}.log"
        server = daemon_server(log, port=port, env={**self.env, **changed})
        self.started.append(server)
        return Daemon(server.wait_ready(60), f"http://127.0.0.1:{port}")

    @contextmanager
    def engine(self) -> Iterator[FakeEngine]:
        """Run a fake engine behind real HTTP."""
        port = free_port()
        engine = FakeEngine(self.store, f"http://127.0.0.1:{port}")
        config = uvicorn.Config(
            engine, host="127.0.0.1", port=port, log_level="critical", lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield engine
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
            engine.close()
            assert not thread.is_alive()


@dataclass
class Daemon:
    """A running daemon and how to call it."""

    server: Server
    url: str

    def call(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - JSON
        """Send one request and return its JSON."""
        return self.response(method, path, **options).json()

    def response(self, method: str, path: str, **options: Any) -> httpx.Response:  # noqa: ANN401 - see httpx
        """Send one request."""
        return httpx.request(method, self.url + path, timeout=30, trust_env=False, **options)

    def turn(self, session_id: str, length: int = 100) -> Any:  # noqa: ANN401 - JSON
        """Take one turn straight at the engine."""
        ticket = self.call("POST", f"/v1/sessions/{session_id}/ticket")
        body = {
            "prompt": list(text(length)),
            "max_tokens": 8,
            "cache_salt": ticket["cache_salt"],
            "kv_transfer_params": ticket["kv_transfer_params"],
        }
        url = ticket["engine"]["url"] + "/v1/completions"
        return httpx.post(url, json=body, timeout=30, trust_env=False).json()

    def wait_for(self, path: str, wanted: dict[str, Any], timeout_s: float = 20.0) -> Any:  # noqa: ANN401 - JSON
        """Ask until the answer has the wanted fields."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            shown = self.call("GET", path)
            if all(shown.get(name) == value for name, value in wanted.items()):
                return shown
            assert time.monotonic() < deadline_s, shown
            time.sleep(0.05)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    root, key_file = tmp_path / "store", tmp_path / "server.key"
    key = load_server_key(key_file, create=True)
    store = Store.open(root, KeyRing.from_server_key(key))
    env = {
        "SESSIOND_STORE_ROOT": str(root),
        "SESSIOND_KEY_FILE": str(key_file),
        "SESSIOND_REGISTRY_URL": f"sqlite:///{tmp_path / 'registry.db'}",
        "SESSIOND_SHUTDOWN_GRACE_S": "1",
        "SESSIOND_LEASE_S": "2",
    }
    node = Node(tmp_path, store, env)
    try:
        yield node
    finally:
        for server in node.started:
            server.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that change nothing."""
    folder, port = tmp_path_factory.mktemp("shared"), free_port()
    env = {"SESSIOND_STORE_ROOT": str(folder / "store")}
    with daemon_server(folder / "log", port=port, env=env) as server:
        yield Daemon(server.wait_ready(60), f"http://127.0.0.1:{port}")
