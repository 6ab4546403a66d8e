from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.canonical import canonical_json, json_digest

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def reordered(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return an equal value whose objects have their keys in another order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(value=VALUES)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:  # noqa: ANN401 - any JSON value
    assert canonical_json(reordered(value)) == canonical_json(value)


@given(value=VALUES)
def test_it_is_json_of_the_same_value(value: Any) -> None:  # noqa: ANN401 - any JSON value
    read = json.loads(canonical_json(value))
    assert canonical_json(read) == canonical_json(value)
    assert read == value


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, 1), (False, 0), (1, 1.0), ("1", 1), (None, ""), ([], {}), ([1, 2], [2, 1])],
)
def test_values_that_python_takes_for_equal_differ(
    one: Any,  # noqa: ANN401 - any JSON value
    other: Any,  # noqa: ANN401 - any JSON value
) -> None:
    assert json_digest({"x": one}) != json_digest({"x": other})


def test_a_tuple_is_a_list() -> None:
    assert canonical_json((1, 2)) == canonical_json([1, 2]) == b"[1,2]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_has_no_json_form_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json([value])


def test_the_form_is_fixed_for_ever() -> None:
    value = {"b": [True, None, 1.5], "a": "é\n"}
    assert canonical_json(value) == '{"a":"é\\n","b":[true,null,1.5]}'.encode()


def test_the_digest_is_sha256() -> None:
    assert json_digest({"a": 1}) == hashlib.sha256(b'{"a":1}').digest()
