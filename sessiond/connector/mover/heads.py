"""Heads as messages between the connector and its mover: both directions, so that they agree."""

from __future__ import annotations

from array import array
from typing import Any

from sessiond.connector.mover import protocol
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit
from sessiond.domain.reasons import Cause
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import TOKEN_BYTES, from_bytes, to_bytes


def message_of(head: Head, head_id: int) -> protocol.WriteHead:
    """Return the message that asks for a head's file; *head_id* names it in its answer."""
    return protocol.WriteHead(
        head_id=head_id,
        tenant=head.tenant,
        session=head.session,
        sequence=head.sequence,
        turns_in_flight=head.turns_in_flight,
        updated_unix_s=head.updated_unix_s,
        branches=[branch.as_json() for branch in head.branches],
        last_turn=head.last_turn.as_json() if head.last_turn else None,
        unkept=head.unkept,
        session_created_unix_us=head.session_created_unix_us,
        payload=b"".join(to_bytes(branch.tokens) for branch in head.branches),
    )


def head_of(message: protocol.WriteHead, engine_id: str) -> Head:
    """Return the head that a message describes."""
    return Head(
        tenant=message.tenant,
        session=message.session,
        engine_id=engine_id,
        sequence=message.sequence,
        turns_in_flight=message.turns_in_flight,
        updated_unix_s=message.updated_unix_s,
        branches=_branches(message.branches, memoryview(message.payload)),
        last_turn=_last_turn(message.last_turn) if message.last_turn else None,
        unkept=message.unkept,
        session_created_unix_us=message.session_created_unix_us,
    )


def _last_turn(described: dict[str, Any]) -> LastTurn:
    split, causes, timing = described["split"], described["causes"], described["timing"]
    return LastTurn(
        **{
            **described,
            "split": TurnSplit(**split) if split else None,
            "causes": tuple(map(Cause.from_json, causes)),
            "timing": TurnTiming.from_json(timing) if timing else None,
        }
    )


def _branches(described: list[dict[str, Any]], payload: memoryview) -> tuple[Branch, ...]:
    branches = []
    start = 0
    for branch in described:
        end = start + branch["tokens"] * TOKEN_BYTES
        tokens: array[int] = from_bytes(payload[start:end])
        start = end
        branches.append(
            Branch(
                tokens=tokens,
                adapter_digest=branch["adapter_digest"],
                cache_salt_hash=branch["cache_salt_hash"],
                updated_unix_s=branch["updated_unix_s"],
                split=TurnSplit(**branch["split"]),
                adapter_name=branch["adapter_name"],
                began_unix_s=branch["began_unix_s"],
            )
        )
    return tuple(branches)
