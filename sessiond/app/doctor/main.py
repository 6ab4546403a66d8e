"""The command line of ``sessiond doctor``. It runs wherever an engine or the daemon does."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sessiond.app.doctor.facts import find_facts
from sessiond.app.doctor.judge import judge
from sessiond.app.doctor.measured import ways_of
from sessiond.app.doctor.report import Report, as_json, as_text
from sessiond.app.doctor.stages import Sizes, measure
from sessiond.app.exits import refusal_text
from sessiond.app.paths import ROOT_VARIABLE, default_store_root, free_space_floor_bytes
from sessiond.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = Sizes()
_EPILOG = """
It writes, reads and removes a file of at most 256 MiB beside what is stored, and decodes KV that
it makes up. Others that work meanwhile are measured as well, so let the machine be quiet.

exit status: 0 if nothing is wrong; 1 if there are problems, each with what to do about it; 2 if
it cannot be measured.
"""


def run(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        root = Path(options.store_root).expanduser() if options.store_root else None
        report = examine((root or default_store_root()).absolute(), _floor(), SIZES)
    except ConfigurationError as error:
        sys.stderr.write(refusal_text("doctor", error, as_json=options.json))
        return 2
    told = json.dumps(as_json(report), indent=1) + "\n" if options.json else as_text(report)
    sys.stdout.write(told)
    return 0 if report.is_fine else 1


def examine(root: Path, floor_bytes: int | None, sizes: Sizes) -> Report:
    """Look at the machine, measure every stage, and judge both.

    :param floor_bytes: to stay free; ``None``: the default
    :raises ConfigurationError: nothing can be written at the store root.
    """
    began_s = time.monotonic()
    place = root
    while not place.is_dir():
        place = place.parent
    try:
        with tempfile.TemporaryDirectory(prefix="sessiond-doctor-", dir=place) as folder:
            facts = find_facts(root, Path(folder), floor_bytes)
            rates = measure(Path(folder), sizes)
    except OSError as error:
        words = f"The store root cannot be measured: {error.strerror or error}."
        raise ConfigurationError(words) from error
    ways = ways_of(rates)
    return Report(facts, rates, ways, judge(facts, rates, ways), time.monotonic() - began_s)


def _floor() -> int | None:
    try:
        return free_space_floor_bytes()
    except ValueError as error:
        raise ConfigurationError(f"SESSIOND_FREE_SPACE_FLOOR_BYTES: {error}.") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond doctor",
        description="Say what limits restores on this machine, and what is wrong with it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--store-root", help=f"where the store is [env: {ROOT_VARIABLE}]")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser
