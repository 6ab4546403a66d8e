"""Runs vLLM as a child, and has its sessions stored before it is stopped.

``sessiond engine`` becomes this small process: standard library only, so that nothing of vLLM's
weight is held twice. The first SIGTERM asks the daemon to drain the engine, then goes on to
vLLM; the second one goes on at once. All other signals go on as they come, and the exit status
is vLLM's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from sessiond.app.drain_client import Drain

_FORWARDED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_MODULE = "sessiond.app.supervisor"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Supervisor:
    """One child, from its start to its end."""

    def __init__(self, command: Sequence[str], drain: Drain) -> None:
        self._command, self._drain = list(command), drain
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []  #: signals that came before the child was there
        self._asked = 0  #: how often we were told to stop

    def run(self) -> int:
        """Run the child to its end; return its status, negative after a signal.

        :raises OSError: it cannot be started.
        """
        # Before the child lives: nothing that comes now may end us and leave it alone.
        before = {n: signal.signal(n, self._heard) for n in (signal.SIGTERM, *_FORWARDED)}
        ignored = [number for number, handler in before.items() if handler is signal.SIG_IGN]
        parent = os.getpid()
        child = subprocess.Popen(  # noqa: S603 - vLLM
            self._command,
            # What is inherited stays: the lock of the temporary folder.
            close_fds=False,
            # A terminal's signals reach us alone, and go on from here.
            process_group=0,
            preexec_fn=lambda: _begin(parent, ignored),  # noqa: PLW1509 - we have one thread
        )
        self._child = child
        for early in self._early:
            self._heard(early, None)
        return child.wait()

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        elif number == signal.SIGTERM:
            self._stop()
        else:
            self._pass_on(number)

    def _stop(self) -> None:
        self._asked += 1
        if self._asked > 1:
            _say("told again to stop: vLLM stops at once")
            self._pass_on(signal.SIGTERM)
            return
        _say(f"told to stop: draining for at most {self._drain.deadline_s:g} s")
        threading.Thread(target=self._drain_and_stop, daemon=True).start()

    def _drain_and_stop(self) -> None:
        try:
            _say(self._drain.run().text)
        finally:
            if self._asked == 1:
                self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def command_line(drain: Drain, command: Sequence[str]) -> list[str]:
    """Return what runs *command* under a supervisor."""
    deadline = repr(drain.deadline_s)
    return [sys.executable, "-m", _MODULE, drain.url, deadline, drain.launch, *command]


def main(arguments: Sequence[str]) -> NoReturn:
    """Run what :func:`command_line` says, and end as it does."""
    url, deadline, launch, *command = arguments
    status = Supervisor(command, Drain(url, float(deadline), launch)).run()
    if status < 0:
        # In the same way, so that whoever started us sees the same.
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status  # the first process of a container, which such signals do not end
    # A drain may still wait for its answer.
    os._exit(status)


def _begin(parent: int, ignored: Sequence[int]) -> None:
    """Let the child ignore what we were told to, as nohup does, and be killed when we are."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    # Nobody else would end it.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may listen any more
        sys.stderr.write(f"sessiond engine: {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
