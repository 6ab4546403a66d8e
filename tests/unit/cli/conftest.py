from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner, Result

from sessiond_cli.main import app

Run = Callable[..., Result]


@dataclass
class Scripted:
    """An HTTP server that gives the same answer to everything and keeps what it was asked."""

    url: str
    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"
    authorizations: list[str | None] = field(default_factory=list)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.authorizations.append(self.headers["Authorization"])
            self.send_response(made.status)
            self.send_header("Content-Type", made.content_type)
            self.send_header("Content-Length", str(len(made.body)))
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Scripted(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line as the console script does, in this process."""
    for name in ("SESSIOND_URL", "SESSIOND_TOKEN", "SESSIOND_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    runner = CliRunner()

    def invoke(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
        return runner.invoke(app, arguments, env=env)

    return invoke
