"""What travels: the mover's messages and tickets."""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
from typing import cast

from sessiond.connector.mover import protocol
from sessiond.domain.errors import TicketError
from sessiond.domain.tickets import Ticket, TicketOp, sign, verify
from sessiond.testing.fuzz.base import Target, by_mode, refused
from sessiond.testing.snapshots import SESSION, TENANT

TICKET_KEY = bytes(32)
_NOW_UNIX_S = 1_800_000_000


class _Received:
    """As much of a socket as a reader of messages needs."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def recv(self, size_bytes: int) -> bytes:
        """Return the next bytes; none at the end."""
        part, self._data = self._data[:size_bytes], self._data[size_bytes:]
        return bytes(part)


def _stream(data: bytes) -> None:
    source = cast("socket.socket", _Received(data))
    with refused(ValueError):  # what the protocol promises to raise
        while protocol.receive(source) is not None:
            pass


def _one_message(data: bytes) -> None:
    """A header in a frame of the right length."""
    _stream(struct.pack("<II", len(data), 0) + data)


def _message_seeds() -> list[bytes]:
    seeds = []
    for header in (
        {"kind": "load", "job_id": 1, "plan_id": 2, "items": [[0, 1], [1, 0]]},
        {"kind": "progress", "job_id": 1},
        {"kind": "store_done", "job_id": 3, "causes": [{"reason": "store_full"}]},
        {"kind": "suspend_finished", "plan_id": 1, "snapshot": None, "causes": []},
    ):
        text = json.dumps(header).encode()
        seeds += [b"\0" + struct.pack("<II", len(text), 4) + text + b"abcd", b"\1" + text]
    return seeds


def _ticket_text(data: bytes) -> None:
    with refused(TicketError):
        verify(data.decode("utf-8", "surrogateescape"), TICKET_KEY, _NOW_UNIX_S)


def _ticket_signed(data: bytes) -> None:
    """A payload with the right signature."""
    mac = hmac.digest(TICKET_KEY, b"sessiond ticket v1\0" + data, "sha256")
    parts = (base64_of(data), base64_of(mac))
    _ticket_text(".".join(("v1", *parts)).encode())


def base64_of(data: bytes) -> str:
    """Return the form in which tickets carry bytes."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _ticket_seeds() -> list[bytes]:
    ticket = Ticket(
        TicketOp.TURN, TENANT, SESSION, "e" * 32, "o", 1, "s", expires_unix_s=_NOW_UNIX_S + 60
    )
    text = sign(ticket, TICKET_KEY)
    payload = text.split(".")[1]
    decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    return [b"\0" + text.encode(), b"\1" + decoded]


MESSAGES = Target(by_mode(_stream, _one_message), _message_seeds)
TICKETS = Target(by_mode(_ticket_text, _ticket_signed), _ticket_seeds)
