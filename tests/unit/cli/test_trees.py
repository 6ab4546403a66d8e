from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sessiond_cli.trees import print_tree

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

_SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="ascii"))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=4)
    ),
    max_leaves=12,
)


def _shown(value: JsonValue) -> str:
    file = io.StringIO()
    print_tree(Console(file=file, width=200, markup=False, highlight=False), value)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_names_values_and_tables() -> None:
    value: JsonValue = {
        "file": "manifest",
        "chunks": [
            {"group": 0, "codec": "zstd"},
            {"group": 1, "codec": "raw"},
        ],
        "section_bytes": {"tokens": 400},
    }
    shown = _shown(value)
    assert shown.splitlines()[0] == "file  manifest"
    assert "section_bytes\n  tokens  400" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["group", "codec"] in rows
    assert ["0", "zstd"] in rows
    assert ["1", "raw"] in rows


def test_lists_of_unlike_things() -> None:
    assert _shown([{"a": 1}, {"b": {"c": [1, 2]}}]) == "a  1\nb\n  c  [1, 2]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [({}, ""), ([], ""), (None, "null"), (0, "0"), ({"a": [], "b": {}}, "a  []\nb  {}")],
)
def test_empty_values(value: JsonValue, shown: str) -> None:
    assert _shown(value) == shown


@given(_VALUES)
def test_no_number_is_lost(value: JsonValue) -> None:
    shown = _shown(value)
    for number in _numbers(value):
        assert str(number) in shown


def _numbers(value: JsonValue) -> list[int]:
    if isinstance(value, Mapping):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []
