"""How ``sessiond engine`` becomes vLLM: its temporary folder, and who watches over its end."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from sessiond.app.drain_client import DEFAULT_URL, URL_VARIABLE, Drain, parsed_deadline_s
from sessiond.app.supervisor import command_line
from sessiond.connector import scratch

DEADLINE_VARIABLE = "SESSIOND_DRAIN_DEADLINE_S"
#: Less than what Kubernetes gives a container to end by default, so that vLLM can end, too.
_DEFAULT_DEADLINE_S = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of an engine's end."""
    parser.add_argument(
        "--drain-url",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help="the daemon that SIGTERM asks to suspend this engine's sessions; its token, an "
        f"operator's, is SESSIOND_TOKEN [env: {URL_VARIABLE}] (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-deadline-s",
        metavar="SECONDS",
        type=parsed_deadline_s,
        # A string is checked as if it had been given.
        default=os.environ.get(DEADLINE_VARIABLE) or str(_DEFAULT_DEADLINE_S),
        help="how long SIGTERM waits for that before vLLM is stopped; a second SIGTERM stops it "
        f"at once; 0: SIGTERM drains nothing [env: {DEADLINE_VARIABLE}] (default: %(default)s)",
    )


def start(command: Sequence[str], drain: Drain) -> NoReturn:
    """Become *command*, watched over unless there is no time for a drain.

    Its temporary folder is its own; those of dead engines are removed.

    :raises OSError: no temporary folder can be made, or it cannot be started.
    """
    scratch.reclaim()
    own = scratch.make()
    if own is None:
        sys.stderr.write(
            f"sessiond engine: {tempfile.gettempdir()} is too long a path for sockets in a folder "
            "of their own: should the engine be killed, its temporary files stay there. "
            "Set TMPDIR to a shorter path.\n"
        )
    env = {**os.environ, **(own.environment(os.environ) if own else {})}
    became = command_line(drain, command) if drain.deadline_s else list(command)
    os.execve(became[0], became, env)  # noqa: S606 - becoming vLLM is the purpose
