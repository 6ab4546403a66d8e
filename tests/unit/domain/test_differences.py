from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.differences import differing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=60), inner),
)


@pytest.mark.parametrize(
    ("stored", "live", "words"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b stored 2, live 3"),
        ({"a": {"b": 1e4}}, {"a": {"b": 5e5}}, "a.b stored 10000.0, live 500000.0"),
        ([{"block": 128}], [{"block": 64}], "0.block stored 128, live 64"),
        ({"a": 1}, {}, "a stored 1, live nothing"),
        ({"a": None}, {}, "a stored null, live nothing"),
        ({"a": True}, {"a": 1}, "a stored true, live 1"),
        ({"a": {"b": 1}}, {"a": "b"}, 'a stored {"b":1}, live "b"'),
        ([1], [1, 2], "1 stored nothing, live 2"),
    ],
)  # fmt: skip
def test_the_keys_that_differ_are_told_with_both_values(
    stored: Any,  # noqa: ANN401 - any JSON value
    live: Any,  # noqa: ANN401 - any JSON value
    words: str,
) -> None:
    assert differing(stored, live) == words


@pytest.mark.parametrize(("stored", "live"), [("a", "b"), (1, None), ({}, "a"), ({}, {})])
def test_where_there_are_no_keys_nothing_is_told(
    stored: Any,  # noqa: ANN401 - any JSON value
    live: Any,  # noqa: ANN401 - any JSON value
) -> None:
    assert differing(stored, live) == ""


def test_of_many_only_some_are_told() -> None:
    words = differing(dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 2))
    assert words == "a stored 1, live 2; b stored 1, live 2; c stored 1, live 2; and 2 more"


def test_what_is_told_twice_counts_once() -> None:
    sides: list[Any] = [{"config": {"text_config": {"a": n}}, "text": {"a": n}} for n in (1, 2)]
    assert differing(*sides) == "config.text_config.a stored 1, live 2"


def test_digests_come_after_what_says_something() -> None:
    stored, live = ({"digest": n, "layers_digest": n, "pages": n} for n in (1, 2))
    assert differing(stored, live).startswith("pages stored 1, live 2; ")


@given(stored=JSON, live=JSON)
def test_it_is_short_whatever_differs(stored: Any, live: Any) -> None:  # noqa: ANN401 - any JSON value
    words = differing(stored, live)
    assert len(words) <= 200 + len("; and 99 more")
    assert not words.startswith(("; ", "and "))


@given(stored=JSON, live=JSON)
def test_containers_that_are_not_alike_have_something_to_tell(stored: Any, live: Any) -> None:  # noqa: ANN401 - any JSON value
    words = differing([stored], [live])
    assert bool(words) == (json.dumps(stored, sort_keys=True) != json.dumps(live, sort_keys=True))


def test_what_lies_deep_is_one_value() -> None:
    stored: Any = 1
    live: Any = 2
    for _ in range(10):
        stored, live = {"a": stored}, {"a": live}
    assert differing(stored, live) == 'a.a.a.a.a.a.a.a stored {"a":{"a":1}}, live {"a":{"a":2}}'
