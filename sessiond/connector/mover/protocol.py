"""The messages between the tier (inside vLLM) and its mover, over a socket pair.

Frame: ``<II`` lengths of header and payload in bytes, the header (JSON: ``kind`` and the
message's fields), the payload (token ids as little-endian 32-bit integers). KV bytes never
travel here: both sides map the RAM tier, and messages name its slots. Chunks are named by their
numbers (:mod:`sessiond.domain.kvgroups`).
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

_LENGTHS = struct.Struct("<II")
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 1 << 30


@dataclass(frozen=True)
class Message:
    """Base of all messages."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True)
class Hello(Message):
    """The first message: what this mover serves."""

    kind: ClassVar[str] = "hello"
    root: str
    key_file: str
    engine_id: str
    fingerprint: dict[str, Any]
    chunk_tokens: int
    chunk_bytes: int
    region_chunks: int
    codec: str  #: a codec's name, or ``auto``
    item_bytes: int  #: size of the numbers that KV consists of
    read_threads: int
    write_threads: int
    memory_bytes: int  #: what the mover may take beside the region
    segment_limit_bytes: int
    half_bytes: int = 0  #: K and V alternate in runs of so many bytes; 0: it is not known how
    floor_bytes: int | None = None  #: of the file system, to stay free; ``None``: the default


@dataclass(frozen=True)
class Ready(Message):
    """The mover has begun to work: the answer to :class:`Hello`."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True)
class WriteHead(Message):
    """Write one head file; payload: the tokens of all branches, one after the other."""

    kind: ClassVar[str] = "write_head"
    tenant: str
    session: str
    sequence: int
    turns_in_flight: int
    updated_unix_s: float
    branches: list[dict[str, Any]]
    payload: bytes = b""
    head_id: int = 0  #: names this message in its answer
    last_turn: dict[str, Any] | None = None
    unkept: str = ""
    session_created_unix_us: int = 0


@dataclass(frozen=True)
class HeadWritten(Message):
    """A head file was written, or failed to be."""

    kind: ClassVar[str] = "head_written"
    head_id: int
    causes: list[dict[str, Any]] = field(default_factory=list)  #: why it was not written


@dataclass(frozen=True)
class OpenLoad(Message):
    """Open a snapshot for a prompt; payload: the prompt's tokens."""

    kind: ClassVar[str] = "open_load"
    plan_id: int
    tenant: str
    session: str
    generation: int
    adapter_digest: str
    payload: bytes = b""


@dataclass(frozen=True)
class LoadOpened(Message):
    """Which chunks of the prompt the snapshot offers, by number, and why not more."""

    kind: ClassVar[str] = "load_opened"
    plan_id: int
    chunks: list[int]
    causes: list[dict[str, Any]]
    tokens_total: int = 0  #: of the snapshot
    tokens_restorable: int = 0  #: of them, those that chunks restore
    common_tokens: int = 0  #: of the snapshot and the prompt


@dataclass(frozen=True)
class Load(Message):
    """Read chunks into slots: pairs of (chunk number, slot)."""

    kind: ClassVar[str] = "load"
    job_id: int
    plan_id: int
    items: list[list[int]]
    until_s: float = 0.0  #: monotonic; what is not begun then is not read; 0: all is


@dataclass(frozen=True)
class LoadDone(Message):
    """A load has ended; slots of failed chunks hold nothing of use."""

    kind: ClassVar[str] = "load_done"
    job_id: int
    failed: list[int]
    causes: list[dict[str, Any]]
    seconds: float
    read_bytes: int
    read_s: float = 0.0  #: waiting for the device, added over threads
    decode_s: float = 0.0  #: verifying, decoding and copying, likewise


@dataclass(frozen=True)
class ClosePlan(Message):
    """The plan's request is over: release its files."""

    kind: ClassVar[str] = "close_plan"
    plan_id: int


@dataclass(frozen=True)
class OpenSuspend(Message):
    """Begin a suspend; payload: the head's tokens (all of them)."""

    kind: ClassVar[str] = "open_suspend"
    plan_id: int
    tenant: str
    session: str
    generation: int
    adapter_digest: str
    payload: bytes = b""


@dataclass(frozen=True)
class SuspendOpened(Message):
    """Which chunks are durable already, by number, in the parent's segments."""

    kind: ClassVar[str] = "suspend_opened"
    plan_id: int
    durable_chunks: list[int]
    causes: list[dict[str, Any]]


@dataclass(frozen=True)
class Store(Message):
    """Write chunks from slots: pairs of (chunk number, slot)."""

    kind: ClassVar[str] = "store"
    job_id: int
    plan_id: int
    items: list[list[int]]


@dataclass(frozen=True)
class StoreDone(Message):
    """The slots of a store job are free again."""

    kind: ClassVar[str] = "store_done"
    job_id: int
    causes: list[dict[str, Any]]


@dataclass(frozen=True)
class Progress(Message):
    """Chunks of a job were moved: however long it takes, it does not hang."""

    kind: ClassVar[str] = "progress"
    job_id: int


@dataclass(frozen=True)
class FinishSuspend(Message):
    """No more chunks will come: commit the manifest, or discard everything."""

    kind: ClassVar[str] = "finish_suspend"
    plan_id: int
    commit: bool


@dataclass(frozen=True)
class DiscardSuspend(Message):
    """Commit nothing of a suspend, should it not have happened yet; its end is told as ever."""

    kind: ClassVar[str] = "discard_suspend"
    plan_id: int


@dataclass(frozen=True)
class SuspendFinished(Message):
    """The suspend has ended; ``snapshot`` is ``None`` if nothing was committed."""

    kind: ClassVar[str] = "suspend_finished"
    plan_id: int
    snapshot: dict[str, Any] | None
    causes: list[dict[str, Any]]


_KINDS: Mapping[str, type[Message]] = {
    message.kind: message
    for message in (
        Hello,
        Ready,
        WriteHead,
        HeadWritten,
        OpenLoad,
        LoadOpened,
        Load,
        LoadDone,
        ClosePlan,
        OpenSuspend,
        SuspendOpened,
        Store,
        StoreDone,
        Progress,
        FinishSuspend,
        DiscardSuspend,
        SuspendFinished,
    )
}


def send(sock: socket.socket, message: Message) -> None:
    """Send one message, blocking.

    :raises OSError: the other side is gone.
    """
    fields = asdict(message)
    payload = fields.pop("payload", b"")
    header = json.dumps({"kind": message.kind, **fields}).encode()
    sock.sendall(_LENGTHS.pack(len(header), len(payload)) + header + payload)


def receive(sock: socket.socket) -> Message | None:
    """Return the next message, blocking; ``None`` when the other side is gone.

    :raises ValueError: what came is no message.
    """
    lengths = _receive_exactly(sock, _LENGTHS.size)
    if lengths is None:
        return None
    header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
        raise ValueError("A message is longer than any that sessiond sends.")
    header = _receive_exactly(sock, header_bytes)
    payload = _receive_exactly(sock, payload_bytes)
    if header is None or payload is None:
        return None
    return _parse(header, payload)


def _parse(header: bytes, payload: bytes) -> Message:
    try:
        fields = json.loads(header)
    except RecursionError as error:
        raise ValueError("A message's header is nested too deeply.") from error
    if not isinstance(fields, dict):
        raise ValueError("A message's header is no JSON object.")
    try:
        message_type = _KINDS[fields.pop("kind")]
        if "payload" in message_type.__dataclass_fields__:
            fields["payload"] = payload
        return message_type(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"No message has this kind or these fields: {error}.") from error


def _receive_exactly(sock: socket.socket, size_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size_bytes:
        try:
            part = sock.recv(min(size_bytes - len(parts), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
