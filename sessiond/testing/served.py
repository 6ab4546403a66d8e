"""A world behind real HTTP on loopback, for callers that are not asynchronous."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from anyio.from_thread import BlockingPortal, start_blocking_portal

from sessiond.testing.world import QUICK, World, open_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from fastapi import FastAPI

    from sessiond.domain.ids import TenantId
    from sessiond.service.limits import Limits

_START_TIMEOUT_S = 10.0
_POLL_S = 0.01
_T = TypeVar("_T")


@dataclass(frozen=True)
class ServedWorld:
    """A world whose event loop runs in a thread of its own."""

    world: World
    url: str
    portal: BlockingPortal

    def run(self, call: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:  # noqa: ANN401 - the call's
        """Await *call* in the world's loop and return what it returns."""
        return self.portal.call(call, *arguments)


@contextmanager
def served_world(
    folder: Path, tokens: Mapping[str, TenantId] | None = None, *, limits: Limits = QUICK
) -> Iterator[ServedWorld]:
    """Yield a world over *folder* that answers HTTP; *tokens* as in the configuration."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(open_world(folder, limits=limits)) as world,
        _served(portal, world.app(tokens)) as url,
    ):
        yield ServedWorld(world, url, portal)


@contextmanager
def _served(portal: BlockingPortal, app: FastAPI) -> Iterator[str]:
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = portal.start_task_soon(server.serve)
    try:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not server.started:
            if serving.done() or time.monotonic() > deadline_s:
                raise RuntimeError("The server did not start.")
            time.sleep(_POLL_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        serving.result(_START_TIMEOUT_S)
