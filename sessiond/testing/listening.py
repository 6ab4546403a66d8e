"""An ASGI application behind a real socket of loopback, in the loop of its caller."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_ENDING_S = 5.0


def bound() -> tuple[socket.socket, str]:
    """Return a socket of a free port, and the base URL under which it will be reached."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found, f"http://127.0.0.1:{found.getsockname()[1]}"


@asynccontextmanager
async def listening(
    app: Any,  # noqa: ANN401 - any ASGI application
    at: socket.socket,
) -> AsyncIterator[Callable[[], None]]:
    """Serve *app* with uvicorn's own protocol, without its waits at start and end.

    Yields a function that cuts off whoever is connected; at the end that is done, too.
    """
    config = uvicorn.Config(app, log_level="critical", lifespan="off", server_header=False)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.Protocol:
        made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=state, app_state={}
        )
        return made

    def cut() -> None:
        for connection in list(state.connections):
            connection.transport.abort()

    server = await loop.create_server(protocol, sock=at)
    try:
        yield cut
    finally:
        server.close()
        cut()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=_ENDING_S)
