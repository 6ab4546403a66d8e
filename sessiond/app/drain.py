"""``sessiond drain``: have the engine beside it emptied, from a hook that runs before its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sessiond.app.drain_client import DEFAULT_URL, URL_VARIABLE, Drain, parsed_deadline_s

_EPILOG = """
It needs nothing but the bare package: run it beside vLLM, as a preStop hook does.
'sessionctl drain ENGINE' tells more.

exit status: 0 if nothing is left to store; 1 if something is, no daemon answers, or it knows no
such engine; 2 if the options cannot be used.
"""


def run(arguments: Sequence[str]) -> int:
    """Run ``sessiond drain`` with *arguments*; return the exit status."""
    options = _parser().parse_args(arguments)
    drained = Drain(options.url, options.deadline_s, engine_url=options.engine_url).run()
    sys.stdout.write(f"{drained.text}\n")
    return 0 if drained.complete else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond drain",
        description="Have the daemon suspend all sessions of the engine at a URL.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine-url",
        metavar="URL",
        default="http://127.0.0.1:8000",
        help="as 'sessiond engine' tells it to the daemon (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help="the daemon; its token, an operator's, is SESSIOND_TOKEN "
        f"[env: {URL_VARIABLE}] (default: %(default)s)",
    )
    parser.add_argument(
        "--deadline-s",
        metavar="SECONDS",
        type=parsed_deadline_s,
        default="30",
        help="how long to try (default: %(default)s)",
    )
    return parser
