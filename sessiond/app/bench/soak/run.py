"""The course of a soak: start, work, look at what is promised, stop, look at what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Final

import httpx

from sessiond.app.bench.soak import leftover, lost
from sessiond.app.bench.soak.agent import SoakAgent, agents, started
from sessiond.app.bench.soak.gate import Gate
from sessiond.app.bench.soak.ledger import Ledger
from sessiond.app.bench.soak.options import SoakOptions
from sessiond.app.bench.soak.procs import Holding, Limits, grown, holding, settled
from sessiond.app.bench.soak.script import FIRST_STEPS, Deed, timeline
from sessiond.app.bench.soak.servers import Servers
from sessiond.app.trials import Say
from sessiond.client import ApiError, Client
from sessiond.client.connecting import HTTP_ARGUMENTS
from sessiond.store.store import Store

#: Pools grow to their size as work comes, caches to theirs: that is no leak.
LIMITS: Final = Limits(descriptors=8, threads=16, memory_bytes=64 << 20)
#: The longest that one step of an agent may take.
_STEP_S: Final = 180.0
_SETTLE_S: Final = 10.0
_DRAIN_S: Final = 30.0
_POLL_S: Final = 0.1
#: Until servers have noticed that their callers have left.
_REST_S: Final = 1.0
#: So much of the time the agents work on after the last kill, whatever a start takes.
_LAST_PART: Final = 1 / 6


class Soak:
    """One soak over servers that it starts.

    :ivar leaked: what is left that nobody needs, in words
    :ivar lost: sessions that are gone, and snapshots that cannot be used, in words
    """

    def __init__(self, servers: Servers, options: SoakOptions, say: Say) -> None:
        self._servers, self._options, self._say = servers, options, say
        self.gate, self.ledger = Gate(options.agents), Ledger()
        self.kills: Counter[str] = Counter()
        self.events: Counter[str] = Counter()  #: of all sessions, by kind
        self.leaked: list[str] = []
        self.lost: list[str] = []
        self.limits = LIMITS
        self._before: dict[int, Holding] = {}  #: by process
        self._http = httpx.Client(
            **HTTP_ARGUMENTS, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._client = Client(servers.daemon_url, http=self._http)

    def close(self) -> None:
        """Let go of agents and connections."""
        self.gate.abandon()
        self._http.close()

    def start(self) -> None:
        """Start daemon and engine."""
        self._say("starting sessiond and the engine, in float32")
        self._servers.stack.start_daemon()
        self._servers.start_engine()

    def work(self) -> None:
        """Have the agents work for their time, and kill what the timeline says meanwhile."""
        options, began_s = self._options, monotonic()
        self._say(f"{options.agents} agents work for {options.minutes:g} minutes")
        crew = agents(options.agents, options.seed, self._servers.daemon_url, self.ledger)
        started(crew, self.gate)
        for moment in timeline(options.seconds):
            _sleep_until(began_s + moment.at_s)
            self._do(moment.deed)
        last_part_s = monotonic() + _LAST_PART * options.seconds
        _sleep_until(max(began_s + options.seconds, last_part_s))
        self._wait_for_first_steps(crew)
        self.gate.end(_STEP_S)
        self.lost += self.ledger.lost

    def _wait_for_first_steps(self, crew: Sequence[SoakAgent]) -> None:
        """Let every agent try all kinds of steps, however slow the machine is."""
        until_s = monotonic() + _STEP_S
        while any(one.done < FIRST_STEPS for one in crew) and monotonic() < until_s:
            if self.gate.has_failed:
                return
            sleep(_POLL_S)

    def examine(self) -> None:
        """Look, with everything still running, at processes and at what was promised."""
        self._say("looking at processes, sessions and snapshots")
        promises = list(self.ledger.promises.values())
        lost.finish_deletes(self._client, promises)
        self._delete_unanswered()
        self._read_trails()
        self.leaked += self._grown()
        self.leaked += leftover.of_dead_engines(self._store(), self._servers.temporary)
        self.leaked += [
            f"shared memory {name} of a killed engine"
            for name in self._servers.shared_memory(of_the_dead=True)
        ]
        self.leaked += [
            f"session {name} was deleted, and is there"
            for name in lost.revived(self._client, promises)
        ]
        self.lost += lost.lost(self._client, self.ledger.kept())

    def stop(self) -> None:
        """Stop the servers, and look at what they leave."""
        self._say("draining and stopping the servers")
        # What the daemon suspends by itself must not be in its midst when the engine ends.
        self._client.pause("the soak ends")
        for engine in self._client.engines().engines:
            self._client.drain(engine.engine_id, deadline_s=_DRAIN_S)
        self._servers.stop_engine()
        sessions = {session.session_id for session in self._client.list_sessions()}
        status = self._servers.stop_daemon()
        if status:
            self.leaked.append(f"the daemon ended with status {status}")
        self._say("reading the whole store")
        store = self._store()
        leftover.reclaim(store, self._servers.temporary)
        self.leaked += leftover.in_store(store, sessions)
        self.lost += leftover.missing(store, self.ledger.kept())
        self.lost += leftover.damaged(store)
        self.leaked += leftover.in_folder(self._servers.temporary)
        self.leaked += [f"shared memory {name}" for name in self._servers.shared_memory()]
        self.leaked += self._servers.leaked

    def _store(self) -> Store:
        stack = self._servers.stack
        return leftover.open_store(stack.store_root, stack.key_file)

    def _do(self, deed: Deed) -> None:
        if deed is Deed.REST:
            with self.gate.rest(_STEP_S):
                self._note_holdings()
        elif deed is Deed.KILL_DAEMON:
            self._say("SIGKILL to the daemon")
            self._servers.kill_daemon()
            self.kills["daemon"] += 1
        else:
            victim = self._servers.kill_engine()
            self._say(f"SIGKILL to {victim} of the engine; starting it again")
            self.kills["engine"] += 1
            self._servers.start_engine()

    def _note_holdings(self) -> None:
        """Remember what the processes hold that have not been looked at before."""
        self._say("at rest: noting what the processes hold")
        sleep(_REST_S)
        for pid in self._servers.processes().values():
            self._before.setdefault(pid, holding(pid))

    def _grown(self) -> list[str]:
        found: list[str] = []
        for name, pid in self._servers.processes().items():
            before = self._before.get(pid)
            if before is not None:
                found += _grown_in_the_end(name, pid, before)
        return found

    def _delete_unanswered(self) -> None:
        """Delete the sessions whose making was not answered: nobody knows of them."""
        for session in list(self._client.list_sessions()):
            if session.session_id not in self.ledger.promises:
                self._client.delete_session(session.session_id)

    def _read_trails(self) -> None:
        """Count what happened to all sessions; each snapshot that is told of is a promise."""
        for promise in self.ledger.promises.values():
            with suppress(ApiError):  # of one that is lost, which is told elsewhere
                for event in self._client.events(promise.session_id):
                    self.events[event.kind] += 1
                    snapshot = event.detail.get("snapshot")
                    if event.kind == "suspended" and snapshot:
                        promise.generation = max(promise.generation, snapshot["generation"])


def _grown_in_the_end(name: str, pid: int, before: Holding) -> list[str]:
    found = settled(
        lambda: holding(pid), lambda now: not grown(name, before, now, LIMITS), _SETTLE_S
    )
    return grown(name, before, found, LIMITS)


def _sleep_until(at_s: float) -> None:
    sleep(max(0.0, at_s - monotonic()))
