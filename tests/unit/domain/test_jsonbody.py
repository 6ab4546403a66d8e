from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.errors import InvalidInputError
from sessiond.domain.jsonbody import parse_body

NAMES = st.text(max_size=6) | st.sampled_from(["model", "cache_salt", "session_id"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
SPACES = st.sampled_from(["", " ", "\n", "\t\r\n "])


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, list[tuple[str, Any]]]:
    """An object as somebody might write it, names repeated, and its members in order."""
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    ascii_only = draw(st.booleans())
    parts = []
    for name, value in members:
        shown = (json.dumps(one, ensure_ascii=ascii_only) for one in (name, value))
        before, between, after, behind = (draw(SPACES) for _ in range(4))
        parts.append(f"{before}{next(shown)}{between}:{after}{next(shown)}{behind}")
    return f"{draw(SPACES)}{{{','.join(parts) or draw(SPACES)}}}{draw(SPACES)}", members


def same(one: object, other: object) -> bool:
    """Whether two values are equal, NaN being equal to itself."""
    return json.dumps(one) == json.dumps(other)


@settings(max_examples=40)
@given(objects(), st.sampled_from([frozenset(), frozenset({"session_id"})]))
def test_nothing_but_what_is_named_changes(
    written: tuple[str, list[tuple[str, Any]]], dropped: frozenset[str]
) -> None:
    text, members = written
    body = parse_body(text.encode("utf-8", "surrogatepass"))
    changed = body.changed({"cache_salt": "ours", "extra": [1]}, dropped)

    expected = dict(members)
    for name in dropped:
        expected.pop(name, None)
    expected |= {"cache_salt": "ours", "extra": [1]}
    assert same(sorted_of(json.loads(changed)), sorted_of(expected))
    kept = [name for name, _ in members if name not in {*dropped, "cache_salt", "extra"}]
    found = [one.name for one in parse_body(changed).members]
    assert [name for name in found if name not in ("cache_salt", "extra")] == kept
    assert found.count("cache_salt") == found.count("extra") == 1


def sorted_of(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(value.items(), key=lambda item: item[0])


@settings(max_examples=40)
@given(objects())
def test_members_are_those_of_the_parser(written: tuple[str, list[tuple[str, Any]]]) -> None:
    text, members = written
    data = text.encode("utf-8", "surrogatepass")
    body, plain = parse_body(data), json.loads(data)
    assert len(body.members) == len(members)
    for name, value in plain.items():
        assert same(body.get(name), value)
    assert body.get("no such member") is None


@settings(max_examples=40)
@given(st.binary(max_size=40) | objects().map(lambda one: one[0][:-1].encode("utf-8", "replace")))
def test_whatever_is_no_object_is_refused_as_the_parser_refuses_it(data: bytes) -> None:
    try:
        expected = json.loads(data)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert same(sorted_of(json.loads(parse_body(data).changed({}))), sorted_of(expected))
    else:
        with pytest.raises(InvalidInputError):
            parse_body(data)


@pytest.mark.parametrize(
    "written",
    [
        "1e400",  # no double holds it
        "123456789012345678901234567890.10",
        '"\\ud83d\\ude00"',
        '"\\ud83d"',  # half a pair
        "NaN",
        '{"b": 1,  "b":2}',
        "1.0",
        "-0",
    ],
)
def test_values_keep_their_spelling(written: str) -> None:
    text = f'{{"a":{written}}}'
    assert parse_body(text.encode()).changed({}).decode() == text


def test_a_name_that_is_written_with_escapes_is_found() -> None:
    body = parse_body(b'{"kv_transfer_params":1,"kv\\u005ftransfer_params":{"do_remote":1}}')
    assert body.changed({"kv_transfer_params": None}) == b'{"kv_transfer_params":null}'
    assert body.changed({}, {"kv_transfer_params"}) == b"{}"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_every_encoding_that_the_parser_reads_becomes_utf_8(encoding: str) -> None:
    data = '{"kv_transfer_params":1,"ä":"€"}'.encode(encoding)
    assert json.loads(data) == {"kv_transfer_params": 1, "ä": "€"}
    assert parse_body(data).changed({}, {"kv_transfer_params"}) == '{"ä":"€"}'.encode()


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'"x"', b"{", b"{}x", b'{"a":1,}', b"{'a':1}", b"\xff\xfe", b"{a:1}"],
)
def test_what_is_no_object_says_where(data: bytes) -> None:
    with pytest.raises(InvalidInputError, match="no JSON object"):
        parse_body(data)


def test_depth_and_length_are_bounded() -> None:
    with pytest.raises(InvalidInputError, match="too deeply"):
        parse_body(b'{"a":' + b"[" * 100_000)
    with pytest.raises(InvalidInputError, match="too long"):
        parse_body(b'{"a":' + b"9" * 5_000 + b"}")
    assert math.isinf(parse_body(b'{"a":1e400}').get("a"))  # type: ignore[arg-type]
