"""Fuzzes the readers of what may have been written by others, guided by coverage (atheris).

``make fuzz`` runs every group for its share of ``FUZZ_SECONDS``; by hand::

    python tests/fuzz/fuzz_store.py [--seconds 120] [--corpus .fuzz] [GROUP …]

Each group runs in a process of its own: a crash, a reader that takes longer than ten seconds, or
one that takes more than a gigabyte of memory ends it, leaves the input beside the corpus, and
makes the exit status 1. What was found becomes a unit test in tests/unit/testing.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

_GROUP_COMMAND = "--group"
_MAX_INPUT_BYTES = 64 << 10
_SLOWEST_S = 10
_MEMORY_MIB = 1024
# Compiled by Numba, which cannot read instrumented code.
_NOT_INSTRUMENTED = ["sessiond.store.planes"]


def main() -> int:
    if sys.argv[1:2] == [_GROUP_COMMAND]:
        fuzz(sys.argv[2], sys.argv[3:])
    options = parse_options()
    failed = [group for group in options.groups if not run_group(group, options)]
    sys.stdout.write(f"found something in: {', '.join(failed) or 'none'}\n")
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    from sessiond.testing.fuzz.targets import TARGETS  # noqa: PLC0415 - not before instrumenting

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=120, help="for all groups together")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="kept between runs")
    options = parser.parse_args()
    options.groups = options.groups or list(TARGETS)
    if set(options.groups) - set(TARGETS):
        parser.error(f"the groups are {', '.join(TARGETS)}")
    return options


def run_group(group: str, options: argparse.Namespace) -> bool:
    """Run one group for its time; returns whether nothing was found."""
    corpus = options.corpus / group
    corpus.mkdir(parents=True, exist_ok=True)
    seconds = max(1, options.seconds // len(options.groups))
    sys.stdout.write(f"{group}: {seconds} s\n")
    sys.stdout.flush()
    done = subprocess.run(
        [
            sys.executable,
            __file__,
            _GROUP_COMMAND,
            group,
            str(corpus),
            f"-max_total_time={seconds}",
            f"-max_len={_MAX_INPUT_BYTES}",
            f"-timeout={_SLOWEST_S}",
            f"-rss_limit_mb={_MEMORY_MIB}",
            f"-artifact_prefix={options.corpus}/{group}-",
            "-print_final_stats=1",
            "-verbosity=0",
        ],
        check=False,
    )
    return done.returncode == 0


def fuzz(group: str, arguments: list[str]) -> None:
    """Fuzz one group in this process, which ends with it."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["sessiond"], exclude=_NOT_INSTRUMENTED):
        targets = importlib.import_module("sessiond.testing.fuzz.targets")
    target = targets.TARGETS[group]
    for number, seed in enumerate(target.seeds()):
        (Path(arguments[0]) / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *arguments], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
