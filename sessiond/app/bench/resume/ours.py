"""sessiond, with one codec: a session is suspended, and comes back in one ticketed request."""

from __future__ import annotations

import time
from typing import Any

from sessiond.app.bench.arrivals import UnexpectedPathError
from sessiond.app.bench.resume.ask import Answer, ask
from sessiond.app.bench.resume.contestant import Prepared
from sessiond.app.bench.resume.sessions import Context
from sessiond.app.bench.resume.site import ENV, Site
from sessiond.testing.agent import Agent
from sessiond.testing.servers import session_members
from sessiond.testing.stack import Stack


class Ours:
    """One store, one daemon, and an engine that is restarted.

    :param with_ram: whether sessions are also served from the RAM tier when they are prepared
    """

    keeps = True

    def __init__(self, name: str, site: Site, codec: str, *, with_ram: bool) -> None:
        self.name = name
        self.folder = site.folder / name
        self._site, self._codec, self._with_ram = site, codec, with_ram
        self._stack = Stack(self.folder)
        self._agents: dict[str, Agent] = {}
        self._engine_runs = False

    def restart(self) -> None:
        """Kill the engine and start another one; the daemon stays."""
        if self._engine_runs:
            self._stack.engine.kill()
        else:
            self.folder.mkdir(parents=True)
            self._stack.start_daemon()
        self._engine_runs = True
        options = (
            *self._site.options,
            "--ram-tier-bytes",
            str(self._site.ram_bytes),
            "--connector-setting",
            f"codec={self._codec}",
            "--allow-weight-updates",  # for development mode; nothing updates them
        )
        self._stack.start_engine(self._site.model, options, ENV)

    def prepare(self, context: Context, tokens: int = 1) -> Prepared:
        """Take the session's first turns, of so many tokens, and suspend it."""
        agent = Agent(context.name, self._stack.daemon_port, self._stack.engine_port)
        self._agents[context.name] = agent
        agent.create_session()
        first, warm = self.arrive(context, tokens), self.arrive(context, tokens)
        self._require(warm, context, "vram_tokens")
        ram = None
        if self._with_ram:
            self.clear_vram()
            ram = self.arrive(context)
            self._require(ram, context, "ram_tokens")
        began_s = time.perf_counter()
        snapshot = agent.suspend().get("snapshot") or {}
        store_s = time.perf_counter() - began_s
        if snapshot.get("tokens_restorable") != context.whole_tokens:
            raise UnexpectedPathError(f"{context.name} was suspended as {snapshot}.")
        return Prepared(first, warm, ram, int(snapshot["new_bytes"]), store_s)

    def arrive(self, context: Context, tokens: int = 1) -> Answer:
        """Take a turn with a ticket, which was asked for before."""
        agent = self._agents.get(context.name)
        ticket: dict[str, Any] = agent.ticket() if agent else {}
        names = ("cache_salt", "kv_transfer_params")
        fields = {name: ticket[name] for name in names if name in ticket}
        return ask(self._stack.engine_port, context, tokens, **fields)

    def clear_vram(self) -> None:
        """Make vLLM forget its prefix cache; the RAM tier keeps what it has."""
        self._stack.clear_vram()

    def processes(self) -> list[int]:
        """Return those of the engine, its mover, and the daemon."""
        servers = (self._stack.engine, self._stack.daemon)
        return [pid for server in servers for pid in session_members(server.pid)]

    def close(self) -> None:
        """End everything."""
        for agent in self._agents.values():
            agent.close()
        if self._engine_runs:
            self._stack.engine.kill()
        self._stack.__exit__()

    def _require(self, answer: Answer, context: Context, kind: str) -> None:
        if answer.split.get(kind) != context.whole_tokens:
            raise UnexpectedPathError(f"{context.name} was served another way: {answer.split}.")
