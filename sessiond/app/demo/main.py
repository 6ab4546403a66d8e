"""Runs the demo from the command line."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from sessiond.app.demo.report import broken_promises, show
from sessiond.app.demo.stage import Stage
from sessiond.app.demo.story import play
from sessiond.app.trials import add_places, timed

_EPILOG = "exit status: 0 if every promise holds, 1 if one is broken."


def run(arguments: Sequence[str]) -> int:
    """Play the story; return 0 if every promise holds."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=options.json)
    # Servers run in process groups of their own: a plain SIGTERM would leave them behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say = timed(console)

    with Stage(options.folder.absolute(), options.models.absolute()) as stage:
        report = play(stage, say)
    broken = broken_promises(report)
    stage.report.write_text(json.dumps(asdict(report), indent=2) + "\n")
    show(report, broken, console)
    console.print(f"report: {stage.report}")
    if options.json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond demo",
        description="Suspend a session, kill the engine, resume: on a real model, on this CPU.",
        epilog=_EPILOG,
    )
    add_places(parser, ".demo")
    parser.add_argument("--json", action="store_true", help="print the report as JSON too")
    return parser
