"""A server that answers what an engine asks its daemon when it is told to stop."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    token: str
    body: dict[str, Any]


@dataclass
class DrainingDaemon:
    """Use it as a context: it serves on loopback, in threads of its own.

    :ivar answers: of a drain, by engine; an engine that has none is not known
    """

    engines: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int = 200  #: of every answer
    strange: bool = False  #: a drain is answered with what is no HTTP
    asked: list[Asked] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)  #: a drain was asked for
    gate: threading.Event = field(default_factory=threading.Event)  #: no drain is answered before

    def __post_init__(self) -> None:
        self.gate.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def knows(self, engine_id: str, launch: str, url: str = "", **told: Any) -> None:  # noqa: ANN401 - JSON
        """Let an engine be there, with what its drain answers."""
        self.engines.append({"engine_id": engine_id, "launch": launch, "url": url})
        nothing: dict[str, Any] = {"saved": [], "unsaved": [], "causes": []}
        self.answers[engine_id] = {"complete": True, **nothing, **told}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: Asked) -> tuple[int, dict[str, Any]]:
        """Return status and body."""
        self.asked.append(asked)
        if self.status != 200:
            problem = {"code": "forbidden", "detail": "Only operators may.", "hint": "Ask one."}
            return self.status, problem
        if asked.method == "GET":
            return 200, {"engines": self.engines}
        self.arrived.set()
        self.gate.wait()
        return 200, self.answers[asked.path.split("/")[3]]


def _handler(daemon: DrainingDaemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the base class's
            """Say nothing."""

        def _answer(self) -> None:
            size_bytes = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size_bytes)) if size_bytes else {}
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            asked = Asked(self.command, self.path, token, body)
            status, told = daemon.answer(asked)
            if daemon.strange and asked.method == "POST":
                self.wfile.write(b"SSH-2.0-none\r\n")
                return
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
