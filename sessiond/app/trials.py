"""What the demo and the benchmarks share: both try the real thing on this machine."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

#: Tells what is being done.
Say = Callable[[str], None]


def timed(console: Console) -> Say:
    """Return what prints each step with the seconds since now."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began_s:6.1f} s[/dim]  {text}")

    return say


def add_places(parser: argparse.ArgumentParser, folder: str) -> None:
    """Add the options for where it works (*folder* by default) and where the model is kept."""
    parser.add_argument(
        "--folder", type=Path, default=Path(folder), help=f"where it works (default: {folder})"
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=Path(".cache/models"),
        help="where the built checkpoint is kept (default: .cache/models)",
    )


def drop_page_cache() -> bool:
    """Have the kernel forget cached files; whether it was allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True
