"""Any JSON value for people: names and values, lists of like things as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding

from sessiond_cli.output import facts, table, text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_INDENT = 2


def print_tree(screen: Console, value: Any, depth: int = 0) -> None:  # noqa: ANN401 - any JSON
    """Print *value*: scalars first, then what is below them."""
    if isinstance(value, Mapping):
        _print_object(screen, value, depth)
    elif _is_table(value):
        titles = list(value[0])
        rows = [[_scalar(row[title]) for title in titles] for row in value]
        _print_indented(screen, table(titles, rows), depth)
    elif _is_list(value):
        for item in value:
            print_tree(screen, item, depth)
    else:
        _print_indented(screen, text(_scalar(value)), depth)


def _print_indented(screen: Console, shown: RenderableType, depth: int) -> None:
    screen.print(Padding(shown, (0, 0, 0, depth * _INDENT), expand=False))


def _print_object(screen: Console, value: Mapping[str, Any], depth: int) -> None:
    flat = [(name, text(_scalar(item))) for name, item in value.items() if _is_scalar(item)]
    if flat:
        _print_indented(screen, facts(flat), depth)
    for name, item in value.items():
        if not _is_scalar(item):
            _print_indented(screen, text(name, "bold"), depth)
            print_tree(screen, item, depth + 1)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_scalar(value: object) -> bool:
    """Whether *value* fits on a line: no object in it, and empty ones."""
    if not value:
        return True
    if _is_list(value):
        return all(_is_scalar(item) for item in _items(value))
    return not isinstance(value, Mapping)


def _items(value: object) -> Sequence[object]:
    assert isinstance(value, Sequence)
    return value


def _is_table(value: object) -> bool:
    """Whether *value* is a list of flat objects with the same names."""
    if not _is_list(value):
        return False
    rows = _items(value)
    if not rows or not all(isinstance(row, Mapping) and row for row in rows):
        return False
    first = rows[0]
    assert isinstance(first, Mapping)
    return all(
        isinstance(row, Mapping)
        and list(row) == list(first)
        and all(_is_scalar(item) for item in row.values())
        for row in rows
    )


def _scalar(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
