"""The ``sessiond`` command: ``serve``, ``engine``, ``drain``, ``doctor``, ``bench`` and others.

Each subcommand's module is imported only when it is called: ``sessiond engine`` has to run
beside vLLM, where nothing but the bare package is installed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from sessiond import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Subcommand: module with ``run(arguments)``, what it does, the extra that it needs.
COMMANDS = {
    "serve": ("sessiond.app.serve", "run the daemon", "server"),
    "engine": ("sessiond.app.engine", "start vLLM with sessiond's connector", "vllm"),
    "drain": ("sessiond.app.drain", "have an engine's sessions stored before it stops", "vllm"),
    "doctor": ("sessiond.app.doctor.main", "say what limits restores on this machine", "server"),
    "store": ("sessiond.app.store", "rebuild the registry from a store's files", "server"),
    "demo": ("sessiond.app.demo.main", "play one agent's story on a real model", "demo"),
    "bench": ("sessiond.app.bench.main", "measure the store, and what others notice", "bench"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``sessiond`` command and return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Only the first word is parsed here: what follows belongs to the subcommand.
    command = str(_parser().parse_args(given[:1]).command)
    module, _, extra = COMMANDS[command]
    try:
        run = importlib.import_module(module).run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sessiond"):
            raise
        sys.stderr.write(
            f"sessiond {command}: the package {error.name!r} is missing; "
            f"install it with: pip install 'sessiond[{extra}]'\n"
        )
        return 2
    return int(run(given[1:]) or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond", description="Keeps an agent's vLLM KV cache alive while the agent is away."
    )
    parser.add_argument("--version", action="version", version=f"sessiond {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, purpose, _) in COMMANDS.items():
        subparsers.add_parser(name, help=purpose, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
