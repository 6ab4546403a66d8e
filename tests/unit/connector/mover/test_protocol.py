from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.mover import protocol
from sessiond.connector.mover.protocol import Message, receive, send

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(2**63), 2**63)
JSON_OBJECTS = st.dictionaries(TEXTS, st.none() | NUMBERS | TEXTS | st.lists(NUMBERS), max_size=3)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXTS,
    "int": NUMBERS,
    "int | None": st.none() | NUMBERS,
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "bytes": st.binary(max_size=500),
    "dict[str, Any]": JSON_OBJECTS,
    "dict[str, Any] | None": st.none() | JSON_OBJECTS,
    "list[dict[str, Any]]": st.lists(JSON_OBJECTS, max_size=3),
    "list[int]": st.lists(NUMBERS, max_size=5),
    "list[list[int]]": st.lists(st.lists(NUMBERS, min_size=2, max_size=2), max_size=5),
}
KINDS = Message.__subclasses__()


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    return st.builds(kind, **{field.name: BY_TYPE[str(field.type)] for field in fields(kind)})


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def receive_raw(*parts: bytes) -> Message | None:
    """Receive what a broken sender sent before it ended."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b"".join(parts))
        return receive(theirs)


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(payload)) + header + payload


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_message_comes_over_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, message)
        assert receive(theirs) == message


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


@given(sent=st.lists(st.one_of(*(messages(kind) for kind in KINDS)), max_size=5))
def test_messages_follow_each_other(sent: list[Message]) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            for message in sent:
                send(ours, message)
        assert [receive(theirs) for _ in sent] == sent
        assert receive(theirs) is None


def test_a_message_larger_than_the_sockets_buffer(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    message = protocol.OpenLoad(1, "t", "s", 2, "", bytes(range(256)) * 40_000)
    sender = threading.Thread(target=send, args=(pair[0], message))
    sender.start()
    assert receive(pair[1]) == message
    sender.join()


def test_a_closed_socket_is_the_end() -> None:
    assert receive_raw() is None


@given(cut=st.integers(0, 200))
def test_a_cut_message_is_the_end(cut: int) -> None:
    whole = frame(b'{"kind":"open_load","plan_id":1}', b"payload of some length")
    assert receive_raw(whole[: cut % len(whole)]) is None


def test_a_reset_connection_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(b"unread")
    theirs.sendall(b"unread")
    theirs.close()
    ours.recv(6)
    assert receive(ours) is None


@pytest.mark.parametrize(
    ("header_bytes", "payload_bytes"), [(2**32 - 1, 0), (10, 2**32 - 1), (1 << 25, 1)]
)
def test_an_oversized_message_is_refused_unread(header_bytes: int, payload_bytes: int) -> None:
    with pytest.raises(ValueError, match="longer"):
        receive_raw(struct.pack("<II", header_bytes, payload_bytes))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"no json",
        b"\xff\xfe",
        b"5",
        b"null",
        b'"text"',
        b"[]",
        b"{}",
        b'{"kind":"invented"}',
        b'{"kind":null}',
        b'{"kind":["load"]}',
        b'{"kind":"close_plan"}',
        b'{"kind":"close_plan","plan_id":1,"extra":2}',
        b'{"kind":"close_plan","plan_id":1,"payload":2}',
    ],
)
def test_garbage_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        receive_raw(frame(header))


@given(noise=st.binary(min_size=8, max_size=300))
def test_noise_is_the_end_or_refused(noise: bytes) -> None:
    try:
        received = receive_raw(noise)
    except ValueError:
        return
    assert received is None


def test_sending_to_nobody_fails(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(OSError, match="pipe"):
        send(pair[0], protocol.ClosePlan(1))


def test_kv_bytes_have_no_place_in_a_header() -> None:
    message = protocol.OpenSuspend(1, "t", "s", 2, "", b"\x00\xff" * 8)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, message)
        header_bytes, payload_bytes = struct.unpack("<II", theirs.recv(8))
        header = json.loads(theirs.recv(header_bytes))
        assert (payload_bytes, "payload" in header) == (16, False)
        assert theirs.recv(16) == message.payload
