from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.plain import plain
from sessiond.domain.canonical import canonical_json

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.tuples(inner, inner)
    ),
)


class Colour(Enum):
    RED = "r"


class Level(IntEnum):
    HIGH = 2


@dataclass
class Spec:
    size: int
    window: int | None = None
    names: list[str] = field(default_factory=list)


class Opaque:
    def __init__(self) -> None:
        self.bits = 4


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (Colour.RED, "RED"),
        (Level.HIGH, "HIGH"),
        ({"b", "a"}, ["a", "b"]),
        ((1, 2), [1, 2]),
        ({1: "x"}, {"1": "x"}),
        (torch.bfloat16, "bfloat16"),
        (Fraction(1, 3), "1/3"),
        (Path("/x"), "/x"),
        ("\ud800", "\\ud800"),
        (Opaque(), {"type": "Opaque", "bits": 4}),
    ],
)
def test_what_has_no_json_form_gets_one(value: Any, expected: Any) -> None:  # noqa: ANN401
    assert plain(value) == expected


def test_a_field_that_has_its_default_is_not_told() -> None:
    # A patch version of vLLM may add one without changing any byte of KV.
    assert plain(Spec(4)) == {"type": "Spec", "size": 4, "names": []}
    assert plain(Spec(4, window=8)) == {"type": "Spec", "size": 4, "window": 8, "names": []}


@given(value=ANYTHING)
def test_everything_has_a_canonical_form(value: Any) -> None:  # noqa: ANN401
    assert canonical_json(plain(value)) == canonical_json(plain(value))


def test_no_hash_seed_shows() -> None:
    script = (
        "from sessiond.connector.plain import plain;"
        "print(plain({'set': {'a', 'b', 'c', 'd'}, 'object': type('O', (), {})()}))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(told) == 1
