"""What only a terminal shows: questions, colours, and ^C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sessiond.domain.ids import SessionId
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessiond.testing.served import ServedWorld
    from tests.integration.cli.conftest import Ask

_TIMEOUT_S = 30.0


class _Terminal:
    """A command whose standard streams are a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self._process = process
        self._fd = fd
        self.output = ""

    def read_until(self, wanted: str) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while wanted not in self.output:
            assert time.monotonic() < deadline_s, self.output
            assert self._read(), self.output

    def write(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        while self._read():
            pass
        return self._process.wait(_TIMEOUT_S)

    def _read(self) -> bool:
        readable, _, _ = select.select([self._fd], [], [], _TIMEOUT_S)
        assert readable, f"nothing more comes after {self.output!r}"
        try:
            got = os.read(self._fd, 4096)
        except OSError:  # the other side is closed
            return False
        self.output += got.decode()
        return bool(got)


def _heed_interrupts() -> None:
    # As in a terminal: what runs these tests in the background may ignore them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _terminal(served: ServedWorld, *arguments: str) -> Iterator[_Terminal]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sessiond_cli.main", *arguments, "--url", served.url]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - one call, which takes no locks
    ) as process:
        os.close(theirs)
        try:
            yield _Terminal(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


def test_purge_asks_and_takes_no_for_an_answer(served: ServedWorld, ask: Ask) -> None:
    served.run(served.world.create, SessionId("a"))
    with _terminal(served, "purge") as terminal:
        terminal.read_until("Delete them with all their snapshots?")
        terminal.write("n\n")
        assert terminal.ended() == ExitStatus.INTERRUPTED
        assert "Matching sessions: 1" in terminal.output
        assert "Nothing was deleted." in terminal.output
    assert len(ask("list")["sessions"]) == 1


def test_purge_asks_and_takes_yes_for_an_answer(served: ServedWorld, ask: Ask) -> None:
    served.run(served.world.create, SessionId("a"))
    with _terminal(served, "purge") as terminal:
        terminal.read_until("Delete them with all their snapshots?")
        terminal.write("y\n")
        assert terminal.ended() == ExitStatus.OK
    assert ask("list")["sessions"] == []


def test_purge_asks_nothing_where_nothing_matches(served: ServedWorld) -> None:
    with _terminal(served, "purge") as terminal:
        assert terminal.ended() == ExitStatus.OK
        assert "Matching sessions: 0" in terminal.output
        assert "Delete them" not in terminal.output


def test_a_terminal_gets_colours(served: ServedWorld) -> None:
    served.run(served.world.create, SessionId("a"))
    with _terminal(served, "show", "a") as terminal:
        assert terminal.ended() == ExitStatus.OK
        assert "\x1b[1m" in terminal.output


def test_an_interrupt(served: ServedWorld) -> None:
    served.run(served.world.create, SessionId("a"))
    with _terminal(served, "purge") as terminal:
        terminal.read_until("Delete them with all their snapshots?")
        terminal.interrupt()
        assert terminal.ended() == ExitStatus.INTERRUPTED
        assert "Traceback" not in terminal.output
        assert "sessionctl: Interrupted." in terminal.output
