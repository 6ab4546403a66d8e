"""A daemon and engines over one folder, as processes, and nothing left afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from sessiond.domain.keys import KeyRing
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store
from sessiond.testing.servers import (
    Server,
    daemon_server,
    engine_server,
    free_port,
    plain_engine_server,
    session_members,
)

_POLL_S = 0.1
SERVED_NAME = "smollm2"


class Stack:
    """Starts and ends the servers. Use it as a context: it ends what still runs.

    :param folder: store, key, registry and logs lie in it
    :param settings: further ``SESSIOND_*`` variables
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.engine_port = free_port()
        self.daemon_port = free_port()
        self.settings = dict(settings or {})  #: may be added to before a start
        self._servers = ExitStack()
        self._engine: Server | None = None
        self._daemon: Server | None = None
        self._starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    @property
    def store_root(self) -> Path:
        """The store root."""
        return self.folder / "store"

    @property
    def key_file(self) -> Path:
        """The server key."""
        return self.folder / "server.key"

    @property
    def engine(self) -> Server:
        """The engine that was started last."""
        assert self._engine is not None
        return self._engine

    @property
    def daemon(self) -> Server:
        """The daemon that was started last."""
        assert self._daemon is not None
        return self._daemon

    @property
    def env(self) -> dict[str, str]:
        """The configuration that engine and daemon share."""
        return {
            "SESSIOND_STORE_ROOT": str(self.store_root),
            "SESSIOND_KEY_FILE": str(self.key_file),
            "SESSIOND_REGISTRY_URL": f"sqlite:///{self.folder / 'registry.db'}",
            # Whoever drives a stack suspends by hand; a sweep would get in between.
            "SESSIOND_IDLE_TIMEOUT_S": "86400",
            # And says itself whether a snapshot is loaded.
            "SESSIOND_PLAN_POLICY": "always_load",
            # What runs beside a turn changes its batch, and so the last bits of what it computes.
            "SESSIOND_FIRST_LOOK": "false",
            **self.settings,
        }

    def start_daemon(self) -> Server:
        """Start ``sessiond serve``."""
        return self.begin_daemon().wait_ready()

    def begin_daemon(self) -> Server:
        """Start ``sessiond serve``; not yet ready when returned."""
        log = self._next_log("daemon")
        server = daemon_server(log, port=self.daemon_port, env=self.env)
        self._daemon = self._servers.enter_context(server)
        return server

    def start_engine(
        self,
        model: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> Server:
        """Start ``sessiond engine``, with the vLLM of *python*'s environment.

        It serves before it has read its files for the first time; that is waited for, too.
        """
        server = self._run(
            engine_server(
                model,
                self._next_log("engine"),
                port=self.engine_port,
                env={**self.env, **(env or {})},
                options=("--served-model-name", SERVED_NAME, *options),
                python=python,
            )
        )
        self._wait_identified()
        return server

    def start_plain_engine(self, model: Path, options: Sequence[str] = ()) -> Server:
        """Start vLLM without sessiond: an engine that never saw a snapshot."""
        return self._run(
            plain_engine_server(
                model,
                self._next_log("plain-engine"),
                port=self.engine_port,
                options=("--served-model-name", SERVED_NAME, *options),
            )
        )

    def mover_pid(self) -> int:
        """Return the process id of the engine's mover.

        :raises ValueError: there is none, or two for a moment
        """
        (pid,) = (
            pid
            for pid in session_members(self.engine.pid)
            if b"sessiond.connector.mover" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        return pid

    def clear_vram(self, timeout_s: float = 30.0) -> None:
        """Make vLLM forget its prefix cache; needs its development mode. RAM keeps what it has.

        :raises TimeoutError: requests held blocks all the time
        """
        url = f"http://127.0.0.1:{self.engine_port}/reset_prefix_cache"
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if httpx.post(url, timeout=timeout_s).status_code == httpx.codes.OK:
                return
            time.sleep(_POLL_S)  # a request that was just cancelled may still hold blocks
        raise TimeoutError("VRAM could not be cleared.")

    def _wait_identified(self, timeout_s: float = 120.0) -> None:
        keys = KeyRing.from_server_key(load_server_key(self.key_file, create=False))
        store = Store.open(self.store_root, keys)
        deadline_s = time.monotonic() + timeout_s
        while any(engine.is_pending for engine in store.live_engines()):
            if time.monotonic() >= deadline_s:
                raise TimeoutError("The engine's fingerprint is still being taken.")
            time.sleep(_POLL_S)

    def _run(self, server: Server) -> Server:
        self._engine = self._servers.enter_context(server)
        return server.wait_ready()

    def _next_log(self, name: str) -> Path:
        self._starts += 1
        return self.folder / "logs" / f"{self._starts}-{name}.log"
