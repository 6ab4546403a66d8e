"""Tickets: short-lived signed permits for what one request may store or load.

Form: ``v1.PAYLOAD.MAC``, both base64url without padding. PAYLOAD is the canonical JSON of the
ticket's fields; MAC is HMAC-SHA256 over ``sessiond ticket v1``, a NUL and PAYLOAD's bytes.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from sessiond.domain.canonical import JsonValue, canonical_json
from sessiond.domain.errors import (
    TicketExpiredError,
    TicketForgedError,
    TicketMalformedError,
)
from sessiond.domain.reasons import Cause

#: Clocks of the two processes may differ by this much.
CLOCK_SLACK_S = 30
#: A ticket longer than this is not looked at.
MAX_TICKET_CHARS = 4096
#: Of the causes that a ticket carries.
MAX_CAUSES_BYTES = 1200
_MAX_CAUSE_BYTES = 300
#: The key of a ticket inside vLLM's ``kv_transfer_params``, and of our part of the answer.
TICKET_PARAM = "sessiond_ticket"
ANSWER_PARAM = "sessiond"
#: vLLM's own key there: token ids that replace the prompt that it would render.
PROMPT_PARAM = "prompt_token_ids"

_TAG = b"sessiond ticket v1\0"
_VERSION = "v1"


class TicketOp(StrEnum):
    """What a ticketed request is for."""

    TURN = "turn"  #: a model call of the session; its head is recorded
    SUSPEND = "suspend"  #: hand the head's KV to the store
    COMMIT = "commit"  #: held until the suspend of the same operation has settled
    RESUME = "resume"  #: bring a snapshot's KV into the engine
    OUTCOME = "outcome"  #: held until the resume of the same operation has settled
    ATTEST = "attest"  #: an operator says that the weights are those of the files
    #: Held until the heads of all that has ended before it are files, of its session or of any.
    HEADS = "heads"


@dataclass(frozen=True)
class Ticket:
    """One permit."""

    op: TicketOp
    tenant: str
    session: str
    engine_id: str
    operation_id: str  #: ties a suspend to its commit and a resume to its outcome
    #: Written by a suspend, loaded by a turn or resume; 0 forbids loading. Of an attest: how many
    #: resets of the engine's caches its sender knows of.
    generation: int
    salt_hash: str
    head_digest: str = ""  #: of the head that a suspend stores
    head_tokens: int = 0
    not_before_unix_s: int = 0
    expires_unix_s: int = 0
    restorable_tokens: int = 0  #: of the generation to load; nothing beyond is loaded; 0: all
    may_load: int = 1  #: 0: the generation is compared with the prompt, and nothing is loaded
    load_limit_ms: int = 0  #: for reading it; what is there then is used; 0: no limit but ours
    adapter_digest: str = ""  #: of the LoRA adapter that the request uses; empty: none
    recomputes: int = 0  #: of a suspend: 1 if it may compute KV that is not there any more
    #: When the session was created: its id may be another one's since; 0: not known.
    session_created_unix_us: int = 0
    #: Of a turn: why it may use less than all of its context; see :func:`causes_text`.
    causes: str = ""

    @property
    def known_causes(self) -> tuple[Cause, ...]:
        """The causes that its sender knew of.

        :raises TicketMalformedError: they have no such form.
        """
        try:
            told = json.loads(self.causes) if self.causes else []
        except ValueError as error:
            raise TicketMalformedError from error
        if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
            raise TicketMalformedError
        return tuple(map(Cause.from_json, told))


def causes_text(causes: Iterable[Cause]) -> str:
    """Return causes in the form that a ticket carries: a JSON list, empty without any.

    A cause that is too long goes without its values, then without its details; no more of them
    are told than fit into :data:`MAX_CAUSES_BYTES`.
    """
    kept: list[JsonValue] = []
    for cause in causes:
        shorter = replace(cause, stored=None, live=None)
        forms = (_told(one) for one in (cause, shorter, Cause(cause.reason)))
        short = (one for one in forms if len(canonical_json(one)) <= _MAX_CAUSE_BYTES)
        fitting = (one for one in short if len(canonical_json([*kept, one])) <= MAX_CAUSES_BYTES)
        told = next(fitting, None)
        if told is None:
            break  # the first ones count most: a later one must not stand in its place
        kept.append(told)
    return canonical_json(kept).decode() if kept else ""


def _told(cause: Cause) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {
        "reason": cause.reason.value,
        "detail": cause.detail,
        "stored": cause.stored,
        "live": cause.live,
    }
    return {name: value for name, value in told.items() if value not in (None, "")}


def sign(ticket: Ticket, key: bytes) -> str:
    """Return the ticket in its text form."""
    payload = canonical_json({**vars(ticket), "op": ticket.op.value})
    return f"{_VERSION}.{_encode(payload)}.{_encode(_mac(payload, key))}"


def verify(text: str, key: bytes, now_unix_s: float) -> Ticket:
    """Return the ticket that *text* holds.

    :raises TicketMalformedError: *text* has no ticket's form.
    :raises TicketForgedError: it was signed with another key, or changed.
    :raises TicketExpiredError: it is not valid at *now_unix_s*, with 30 s of slack.
    """
    payload, mac = _split(text)
    if not hmac.compare_digest(mac, _mac(payload, key)):
        raise TicketForgedError
    ticket = _parse(payload)
    early = now_unix_s < ticket.not_before_unix_s - CLOCK_SLACK_S
    late = now_unix_s > ticket.expires_unix_s + CLOCK_SLACK_S
    if early or late:
        raise TicketExpiredError
    return ticket


def _split(text: str) -> tuple[bytes, bytes]:
    parts = text.split(".") if len(text) <= MAX_TICKET_CHARS else []
    if len(parts) != 3 or parts[0] != _VERSION:
        raise TicketMalformedError
    try:
        return _decode(parts[1]), _decode(parts[2])
    except (binascii.Error, ValueError) as error:
        raise TicketMalformedError from error


def _parse(payload: bytes) -> Ticket:
    # The MAC was right, so we wrote this; another version of us may have.
    try:
        values = json.loads(payload)
        values["op"] = TicketOp(values["op"])
        ticket = Ticket(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise TicketMalformedError from error
    for field in fields(Ticket):
        expected = int if field.type == "int" else str
        value = getattr(ticket, field.name)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TicketMalformedError
    _ = ticket.known_causes  # so that nobody is surprised later
    return ticket


def _mac(payload: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _TAG + payload, "sha256")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    # Several texts decode to the same bytes ('+' for '-', spare bits at the end): one is valid.
    if _encode(data) != text:
        raise ValueError("not the one base64url form of these bytes")
    return data
