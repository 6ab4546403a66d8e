"""Real processes and real signals; the child stands for vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from sessiond.app.drain_client import Drain
from sessiond.app.supervisor import command_line
from sessiond.testing.draining_daemon import DrainingDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TIMEOUT_S = 60.0
#: Tells its process id, then each signal that it gets; ends with status 7 after SIGTERM. A signal
#: may come at any instant: print() must not interrupt itself, nor pause() miss the last one.
CHILD = """
import os, signal, sys, time
def tell(text):
    os.write(1, f"{text}\\n".encode())
def told(number, frame):
    tell(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, told)
tell(os.getpid())
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def daemon() -> Iterator[DrainingDaemon]:
    with DrainingDaemon() as serving:
        serving.knows("engine", "mine", saved=[{}])
        yield serving


class Supervised:
    """A supervisor and its child."""

    def __init__(self, process: subprocess.Popen[str], out: IO[str]) -> None:
        self.process, self._out = process, out
        self.child_pid = int(self.line())

    def line(self) -> str:
        """Return the next line that the child says; empty at its end."""
        return self._out.readline().rstrip()

    def ended(self) -> tuple[int, str, str]:
        """Return the exit status, what the child said last, and what the supervisor said."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out.strip(), err


@contextmanager
def supervised(
    url: str, child: str = CHILD, deadline_s: float = 30.0, before: Sequence[str] = ()
) -> Iterator[Supervised]:
    command = command_line(Drain(url, deadline_s, "mine"), [sys.executable, "-c", child])
    process = subprocess.Popen(
        [*before, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            yield Supervised(process, process.stdout)
        finally:
            process.kill()


def test_it_drains_then_stops_the_child(daemon: DrainingDaemon) -> None:
    daemon.gate.clear()
    with supervised(daemon.url) as running:
        running.process.terminate()
        assert daemon.arrived.wait(TIMEOUT_S)
        running.process.send_signal(signal.SIGUSR1)  # the child serves on meanwhile
        assert running.line() == "SIGUSR1"
        daemon.gate.set()
        assert running.line() == "SIGTERM"
        status, out, err = running.ended()
    assert (status, out) == (7, "")
    assert "drained: 1 sessions stored, 0 not" in err
    (posted,) = (one for one in daemon.asked if one.method == "POST")
    assert 0 < posted.body["deadline_s"] <= 30


def test_a_second_sigterm_stops_it_at_once(daemon: DrainingDaemon) -> None:
    daemon.gate.clear()
    with supervised(daemon.url) as running:
        running.process.terminate()
        assert daemon.arrived.wait(TIMEOUT_S)
        running.process.terminate()
        status, out, err = running.ended()
    assert (status, out) == (7, "SIGTERM")
    assert "at once" in err


def test_without_a_daemon_it_says_so_and_stops(daemon: DrainingDaemon) -> None:
    del daemon.engines[:]
    for url, word in (("http://127.0.0.1:1", "not drained by"), (daemon.url, "no such engine")):
        with supervised(url) as running:
            running.process.terminate()
            status, out, err = running.ended()
        assert (status, out) == (7, "SIGTERM")
        assert word in err


def test_other_signals_go_on_and_drain_nothing(daemon: DrainingDaemon) -> None:
    with supervised(daemon.url) as running:
        for name in ("SIGINT", "SIGHUP"):
            running.process.send_signal(signal.Signals[name])
            assert running.line() == name
    assert daemon.asked == []


def test_what_nohup_lets_it_ignore_the_child_ignores(daemon: DrainingDaemon) -> None:
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    child = CHILD.replace("signal.SIGHUP, ", "")
    with supervised(daemon.url, child, before=ignoring) as running:
        running.process.send_signal(signal.SIGHUP)
        running.process.send_signal(signal.SIGUSR1)
        assert running.line() == "SIGUSR1"


@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_its_status_is_the_childs(end: str, status: int) -> None:
    with supervised("", f"import os, sys; print(1, flush=True); {end}") as running:
        assert running.ended()[0] == status


def test_a_child_that_dies_meanwhile_ends_it(daemon: DrainingDaemon) -> None:
    daemon.gate.clear()
    with supervised(daemon.url) as running:
        running.process.terminate()
        assert daemon.arrived.wait(TIMEOUT_S)
        os.kill(running.child_pid, signal.SIGKILL)
        assert running.ended()[0] == -signal.SIGKILL


def test_the_child_dies_with_it(daemon: DrainingDaemon) -> None:
    with supervised(daemon.url) as running:
        running.process.kill()
        # It never closes its output, nor ends by itself.
        assert running.line() == ""


def test_the_child_has_its_own_process_group_and_what_we_inherited(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    fd = os.open(lock, os.O_CREAT | os.O_RDWR)
    os.set_inheritable(fd, True)  # noqa: FBT003 - the name says it
    child = f"import os; print(os.getpid(), os.getpgid(0), os.readlink('/proc/self/fd/{fd}'))"
    command = command_line(Drain("", 1.0, "mine"), [sys.executable, "-c", child])
    done = subprocess.run(
        command, capture_output=True, text=True, close_fds=False, timeout=TIMEOUT_S, check=True
    )
    os.close(fd)
    pid, group, inherited = done.stdout.split()
    assert (group, inherited) == (pid, str(lock))


def test_nothing_of_vllms_weight_is_held_twice() -> None:
    heavy = ["numpy", "torch", "vllm", "httpx", "pydantic", "sessiond.store", "sessiond.connector"]
    script = (
        "import sys, sessiond.app.supervisor, sessiond.app.drain; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
