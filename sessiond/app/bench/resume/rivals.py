"""vLLM without sessiond: alone, and with what users would otherwise choose."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sessiond.app.bench.resume import files
from sessiond.app.bench.resume.ask import Answer, ask
from sessiond.app.bench.resume.contestant import Prepared
from sessiond.app.bench.resume.options import LMCACHE
from sessiond.app.bench.resume.sessions import Context
from sessiond.app.bench.resume.site import ENV, Site, lmcache_transfer, rival_options
from sessiond.domain.ids import new_hex_id
from sessiond.testing.servers import Server, free_port, plain_engine_server, session_members

#: From where its files lie, a KV transfer configuration.
Transfer = Callable[[Path], Mapping[str, Any]]
_STORED_TIMEOUT_S = 60.0
#: LMCache stores a context in part where its memory has no room for all of it. So it has this
#: many times the others' RAM tier, and half of it is kept free.
_LMCACHE_TIMES = 2
_SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_LMCACHE_ENV = {"LMCACHE_TRACK_USAGE": "false"}


class Rival:
    """vLLM without sessiond.

    :param transfer: from where its files lie, its KV transfer configuration; ``None``: none
    """

    _python: str = sys.executable  #: of the environment whose vLLM it is

    def __init__(self, name: str, site: Site, transfer: Transfer | None = None) -> None:
        self.name = name
        self.folder = site.folder / name
        self._site, self._transfer = site, transfer
        self._servers: list[Server] = []
        self._exits = ExitStack()
        self._port = 0
        self._starts = 0

    @property
    def keeps(self) -> bool:
        """Whether it has a connector."""
        return self._transfer is not None

    @property
    def _files(self) -> Path:
        return self.folder / "kv"

    def restart(self) -> None:
        """Start the engine anew."""
        self.close()
        self._files.mkdir(parents=True, exist_ok=True)
        self._start()

    def _start(self) -> None:
        transfer = self._transfer(self._files) if self._transfer else None
        self._port = free_port()
        engine = plain_engine_server(
            self._site.model,
            self._log("engine"),
            port=self._port,
            options=rival_options(self._site, transfer),
            env=ENV,
            python=self._python,
        )
        self._enter(engine)

    def prepare(self, context: Context) -> Prepared:
        """Take two turns and wait for the files."""
        before_bytes = files.stored_bytes(self._files)
        first = self.arrive(context)
        raw_bytes = context.whole_tokens * self._site.token_bytes
        store_s = files.wait_for(self._files, before_bytes + raw_bytes, _STORED_TIMEOUT_S)
        stored_bytes = files.stored_bytes(self._files) - before_bytes
        return Prepared(first, self.arrive(context), None, stored_bytes, store_s)

    def arrive(self, context: Context, tokens: int = 1) -> Answer:
        """Take a turn."""
        return ask(self._port, context, tokens)

    def processes(self) -> list[int]:
        """Return all members of its servers' sessions."""
        return [pid for server in self._servers for pid in session_members(server.pid)]

    def close(self) -> None:
        """Kill what runs."""
        for server in self._servers:
            server.kill()
        self._exits.close()
        self._servers = []

    def _enter(self, server: Server) -> None:
        self._servers.append(self._exits.enter_context(server))
        server.wait_ready()

    def _log(self, name: str) -> Path:
        self._starts += 1
        return self.folder / "logs" / f"{self._starts}-{name}.log"


class LmCache(Rival):
    """LMCache in MP mode: a server beside the engine, with memory and a folder on the disk.

    :param python: of an environment that has LMCache beside vLLM
    """

    def __init__(self, site: Site, python: Path) -> None:
        self._server_port = free_port()
        super().__init__(LMCACHE, site, lambda _: lmcache_transfer(self._server_port))
        self._python = str(python)
        self._shm_name = f"sessiond_bench_{new_hex_id()[:8]}"

    def _start(self) -> None:
        self._server_port, http_port = free_port(), free_port()
        adapter = {"type": "fs_native", "base_path": str(self._files), "use_odirect": True}
        options = {
            "host": "127.0.0.1",
            "port": self._server_port,
            "http-host": "127.0.0.1",
            "http-port": http_port,
            "supported-transfer-mode": "auto",
            "shm-name": self._shm_name,
            "l1-size-gb": self._site.ram_bytes / (1 << 30) * _LMCACHE_TIMES,
            "eviction-policy": "LRU",
            "eviction-trigger-watermark": 1 / _LMCACHE_TIMES,
            "l2-adapter": json.dumps(adapter),
        }
        told = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        server = Server(
            [self._python, "-m", "lmcache.v1.multiprocess.http_server", "--no-l1-use-lazy", *told],
            f"http://127.0.0.1:{http_port}/healthcheck",
            self._log("lmcache"),
            {**ENV, **_LMCACHE_ENV},
        )
        self._enter(server)
        super()._start()

    def close(self) -> None:
        """Kill what runs, and remove the memory that a killed server leaves."""
        super().close()
        (_SHM / f"lmcache_l1_pool_{self._shm_name}").unlink(missing_ok=True)
