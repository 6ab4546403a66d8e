"""The daemon and the engines of a soak, and how they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from sessiond.app.bench.soak.procs import parent_of
from sessiond.connector import leftovers
from sessiond.domain.engines import SharedFile
from sessiond.testing.servers import session_members
from sessiond.testing.stack import Stack

#: Of float32 KV of the model, 128 tokens each: a few conversations fill VRAM, or the RAM tier.
CHUNK_BYTES: Final = 1_179_648
VRAM_CHUNKS: Final = 24
RAM_CHUNKS: Final = 18
#: Of the longest conversation that the model takes.
CONTEXT_TOKENS: Final = 1_536

_IDLE_TIMEOUT_S: Final = 1.5
_SWEEP_INTERVAL_S: Final = 0.5
_END_S: Final = 30.0
#: A drain, and vLLM's own end.
_STOP_S: Final = 60.0
_LOG_LINES: Final = 30
_POLL_S: Final = 0.1
#: Which of an engine's processes get SIGKILL, in turns.
EVERYONE, CORE, FIRST = "every process", "the engine core", "the first process"
_VICTIMS: Final = (EVERYONE, CORE, FIRST)


class Servers:
    """One daemon and one engine at a time, over one store.

    :param stack: ended by whoever made it
    :param temporary: the servers' temporary folder, theirs alone
    """

    def __init__(self, stack: Stack, model: Path, temporary: Path) -> None:
        self.stack, self.temporary, self._model = stack, temporary, model
        self._shared: set[SharedFile] = set()
        self._of_the_dead: set[SharedFile] = set()
        self._kills = 0
        self.leaked: list[str] = []  #: processes that outlived their engine
        stack.settings |= {
            "TMPDIR": str(temporary),
            "SESSIOND_URL": self.daemon_url,
            "SESSIOND_IDLE_TIMEOUT_S": str(_IDLE_TIMEOUT_S),
            "SESSIOND_SWEEP_INTERVAL_S": str(_SWEEP_INTERVAL_S),
        }

    @property
    def daemon_url(self) -> str:
        """Where the daemon is."""
        return f"http://127.0.0.1:{self.stack.daemon_port}"

    def start_engine(self) -> None:
        """Start an engine, and return when it serves and knows its own model."""
        options = ("--dtype", "float32", "--max-model-len", str(CONTEXT_TOKENS))
        room = (
            *("--num-gpu-blocks-override", str(VRAM_CHUNKS)),
            *("--ram-tier-bytes", str(RAM_CHUNKS * CHUNK_BYTES)),
        )
        # Log-probabilities would be compiled first, half a minute for each engine.
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
        self.stack.start_engine(self._model, (*options, *room), env)
        self._note_shared()

    def kill_daemon(self) -> None:
        """SIGKILL the daemon, and start it again."""
        self.stack.daemon.kill()
        self.stack.start_daemon()

    def kill_engine(self) -> str:
        """SIGKILL an engine, or one of its processes, and return which.

        The others must end by themselves; nothing of what it leaves is removed here.
        """
        self._note_shared()
        self._of_the_dead |= self._shared
        leader = self.stack.engine.pid
        victim = _VICTIMS[self._kills % len(_VICTIMS)]
        self._kills += 1
        for pid in self._victims(victim, leader):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._require_gone(leader)
        return victim

    def stop_engine(self) -> None:
        """SIGTERM the engine: the daemon has it suspend its sessions first."""
        self._note_shared()
        leader = self.stack.engine.pid
        os.kill(leader, signal.SIGTERM)
        try:
            self.stack.engine.wait_end(_STOP_S)
        except subprocess.TimeoutExpired:
            tail = "\n".join(self.stack.engine.log_text().splitlines()[-_LOG_LINES:])
            self.leaked.append(f"the engine does not end on SIGTERM; the end of its log:\n{tail}")
        self._require_gone(leader)

    def stop_daemon(self) -> int:
        """SIGTERM the daemon, and return its exit status."""
        os.kill(self.stack.daemon.pid, signal.SIGTERM)
        return self.stack.daemon.wait_end()

    def shared_memory(self, *, of_the_dead: bool = False) -> list[str]:
        """Return the files in shared memory that engines made and nobody removed.

        :param of_the_dead: only those of engines that were killed before the last start
        """
        folder = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
        left = []
        for file in self._of_the_dead if of_the_dead else self._shared:
            with suppress(FileNotFoundError):
                if (folder / file.name).lstat().st_ino == file.inode:
                    left.append(file.name)
        return sorted(left)

    def processes(self) -> dict[str, int]:
        """Return the processes that are watched, by what they are."""
        mover = self.stack.mover_pid()
        return {"daemon": self.stack.daemon.pid, "mover": mover, "engine core": parent_of(mover)}

    def _victims(self, victim: str, leader: int) -> list[int]:
        if victim == EVERYONE:
            return session_members(leader)
        return [leader] if victim == FIRST else [parent_of(self.stack.mover_pid())]

    def _note_shared(self) -> None:
        self._shared |= leftovers.mapped_by(session_members(self.stack.engine.pid))

    def _require_gone(self, leader: int) -> None:
        until_s = monotonic() + _END_S
        while (left := session_members(leader)) and monotonic() < until_s:
            self.stack.engine.is_running()  # takes its exit status, so that it is no zombie
            sleep(_POLL_S)
        for pid in left:
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                self.leaked.append(f"process {name} outlived its engine by {_END_S:g} s")
                os.kill(pid, signal.SIGKILL)
