from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError, StoreError, StoreKeyError, StoreVersionError
from sessiond.store import sealed
from sessiond.store.checksums import short_check
from sessiond.store.sealed import Kind, Sealed
from sessiond.testing.snapshots import a_key_ring

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

KEYS, OTHER_KEYS = a_key_ring(1), a_key_ring(2)
JSON_VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5), JSON_VALUES, max_size=4
)
TAGS = st.binary(min_size=4, max_size=4).filter(lambda tag: tag != b"JSON")
CONTENTS = st.builds(
    Sealed,
    kind=st.sampled_from(Kind),
    values=OBJECTS,
    sections=st.dictionaries(TAGS, st.binary(max_size=40), max_size=4),
)


@given(CONTENTS)
def test_contents_round_trip(contents: Sealed) -> None:
    assert sealed.unpack(sealed.pack(contents, KEYS), contents.kind, KEYS) == contents


@given(CONTENTS, st.data())
def test_any_changed_byte_is_damage_and_never_another_key(
    contents: Sealed, data: st.DataObject
) -> None:
    packed = bytearray(sealed.pack(contents, KEYS))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreCorruptError):
        sealed.unpack(bytes(packed), contents.kind, KEYS)


@given(CONTENTS, st.data())
def test_a_cut_or_grown_file_is_damage(contents: Sealed, data: st.DataObject) -> None:
    packed = sealed.pack(contents, KEYS)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    grown = packed + data.draw(st.binary(min_size=1, max_size=300))
    for candidate in (cut, grown, bytes(len(packed))):
        with pytest.raises(StoreCorruptError):
            sealed.unpack(candidate, contents.kind, KEYS)


@given(CONTENTS)
def test_another_key_is_never_damage(contents: Sealed) -> None:
    with pytest.raises(StoreKeyError):
        sealed.unpack(sealed.pack(contents, OTHER_KEYS), contents.kind, KEYS)


def test_a_head_is_no_manifest() -> None:
    packed = sealed.pack(Sealed(Kind.HEAD, {}), KEYS)
    with pytest.raises(StoreCorruptError):
        sealed.unpack(packed, Kind.MANIFEST, KEYS)


@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        sealed.unpack(data, Kind.MANIFEST, KEYS)


def repacked(offset: int, value: bytes) -> bytes:
    """Change the fixed header and make its check right again, as an attacker would."""
    packed = bytearray(sealed.pack(Sealed(Kind.MANIFEST, {}), KEYS))
    packed[offset : offset + len(value)] = value
    packed[120:128] = short_check(bytes(packed[:120]))
    return bytes(packed)


@pytest.mark.parametrize(("offset", "value"), [(12, b"\2\0"), (14, b"\1\0")])
def test_unknown_versions_and_flags_are_named_as_such(offset: int, value: bytes) -> None:
    with pytest.raises(StoreVersionError):
        sealed.unpack(repacked(offset, value), Kind.MANIFEST, KEYS)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (8, b"XXXX"),  # kind
        (16, b"\xff\xff"),  # sections
        (16, b"\x02\x00"),
        (112, struct.pack("<Q", 1 << 40)),  # file length
        (136, struct.pack("<Q", 1 << 40)),  # length of the first section
        (136, struct.pack("<Q", 1)),
    ],
)
def test_absurd_counts_and_lengths_are_refused_with_and_without_keys(
    offset: int, value: bytes
) -> None:
    data = repacked(offset, value)
    with pytest.raises(StoreCorruptError):
        sealed.unpack(data, Kind.MANIFEST, KEYS)
    with pytest.raises(StoreCorruptError):
        sealed.read_unsealed(data)


@given(OBJECTS)
def test_json_files_round_trip(record: dict[str, JsonValue]) -> None:
    assert sealed.unpack_json(sealed.pack_json("session", record, KEYS), "session", KEYS) == record


def test_a_changed_json_record_is_damage() -> None:
    outer = json.loads(sealed.pack_json("session", {"pinned": True}, KEYS))
    outer["record"]["pinned"] = False
    with pytest.raises(StoreCorruptError):
        sealed.unpack_json(json.dumps(outer).encode(), "session", KEYS)


@given(st.data())
def test_any_changed_byte_of_a_json_file_leaves_the_record_or_is_refused(
    data: st.DataObject,
) -> None:
    packed = bytearray(sealed.pack_json("session", {"pinned": True, "n": 7}, KEYS))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        record = sealed.unpack_json(bytes(packed), "session", KEYS)
    except StoreError:
        return
    assert record == {"pinned": True, "n": 7}  # such as another blank between two values


def test_json_files_of_other_keys_kinds_and_versions() -> None:
    packed = sealed.pack_json("session", {}, KEYS)
    with pytest.raises(StoreKeyError):
        sealed.unpack_json(packed, "session", OTHER_KEYS)
    with pytest.raises(StoreCorruptError):
        sealed.unpack_json(packed, "engine", KEYS)
    with pytest.raises(StoreVersionError):
        sealed.unpack_json(packed.replace(b'"version": 1', b'"version": 2'), "session", KEYS)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b'{"record": NaN}',
        b'{"record": {"x": 1e999}, "kind": "session", "version": 1, "seal": "", "key_id": ""}',
        b"[]",
        b"",
        b"\xff",
    ],
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(StoreCorruptError):
        sealed.unpack_json(data, "session", KEYS)
