"""Answers as JSON for scripts, or as tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sessiond_cli.formats import plain

#: Wide enough that no line is broken in a file or a pipe, where grep looks for it.
_PIPE_WIDTH: Final = 10_000
Render = Callable[[Console], None]


@dataclass(frozen=True)
class Output:
    """Where a command's answer goes."""

    as_json: bool

    def show(self, value: object, render: Render) -> None:
        """Print *value* as one JSON line, or let *render* print it for people."""
        if self.as_json:
            sys.stdout.write(json.dumps(value) + "\n")
        else:
            render(console(stderr=False))

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show on a terminal's stderr that something lasts; yields what changes the words."""
        screen = console(stderr=True)
        if self.as_json or not screen.is_terminal:
            yield lambda _: None
            return
        with screen.status(what) as status:
            yield lambda words: status.update(text(words))


def console(*, stderr: bool) -> Console:
    """Return a console: colours and the terminal's width only where there is a terminal."""
    screen = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not screen.is_terminal:
        screen.width = _PIPE_WIDTH
    return screen


def text(value: object, style: str = "") -> Text:
    """Return *value* as text that cannot steer the terminal."""
    return Text(plain(str(value)), style=style)


def table(titles: Sequence[str], rows: Sequence[Sequence[Text | str]]) -> Table:
    """Return a table with a line of titles."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        made.add_column(title)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else text(cell) for cell in row))
    return made


def facts(rows: Sequence[tuple[str, Text | str]]) -> Table:
    """Return a table of names and values."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column()
    for name, value in rows:
        made.add_row(name, value if isinstance(value, Text) else text(value))
    return made


def print_causes(screen: Console, causes: Sequence[dict[str, Any]]) -> None:
    """Print why KV was not kept or not used, each with what can be done."""
    for cause in causes:
        detail = f" ({cause['detail']})" if cause.get("detail") else ""
        screen.print(text(f"{cause['reason']}: {cause['sentence']}{detail}", "yellow"))
        values = [cause.get("stored"), cause.get("live")]
        # Of two objects the detail names the keys that differ; --json has all of them.
        if values != [None, None] and not all(isinstance(one, dict | list) for one in values):
            screen.print(text("  stored: {}  live: {}".format(*values)))
        if cause.get("hint"):
            screen.print(text(f"  hint: {cause['hint']}"))


def print_running(screen: Console, operation: dict[str, Any]) -> None:
    """Print that an operation goes on."""
    screen.print(text(f"{operation['operation_id']} goes on; 'sessionctl show' tells the rest."))
