"""Heads as bytes: what one engine knows of a session, a small file that is often rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.errors import InvalidInputError, StoreCorruptError
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit
from sessiond.domain.reasons import Cause
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import TOKEN_BYTES, TokenIds, from_bytes, to_bytes
from sessiond.store import sealed
from sessiond.store.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.keys import KeyRing

_TOKENS = b"TOKS"


def pack_head(head: Head, keys: KeyRing) -> bytes:
    """Return the head's file."""
    values: dict[str, JsonValue] = {
        "tenant": head.tenant,
        "session": head.session,
        "engine_id": head.engine_id,
        "sequence": head.sequence,
        "turns_in_flight": head.turns_in_flight,
        "updated_unix_s": head.updated_unix_s,
        "branches": [branch.as_json() for branch in head.branches],
        "last_turn": head.last_turn.as_json() if head.last_turn else None,
        "unkept": head.unkept,
        "session_created_unix_us": head.session_created_unix_us,
    }
    tokens = b"".join(to_bytes(branch.tokens) for branch in head.branches)
    return sealed.pack(sealed.Sealed(sealed.Kind.HEAD, values, {_TOKENS: tokens}), keys)


def unpack_head(data: bytes, keys: KeyRing) -> Head:
    """Read a head's file.

    :raises StoreCorruptError: it is damaged.
    :raises StoreVersionError: a version wrote it that this one cannot read.
    :raises StoreKeyError: it was sealed with another key.
    """
    return head_of(sealed.unpack(data, sealed.Kind.HEAD, keys))


def head_of(contents: sealed.Sealed) -> Head:
    """Return the head that a sealed file holds.

    :raises StoreCorruptError: it holds none.
    """
    fields = Fields(contents.values)
    branches = fields.objects("branches")
    lengths = [branch.count("tokens") for branch in branches]
    tokens = _split_tokens(contents.sections.get(_TOKENS, b""), lengths)
    return Head(
        tenant=fields.text("tenant"),
        session=fields.text("session"),
        engine_id=fields.text("engine_id"),
        sequence=fields.count("sequence"),
        turns_in_flight=fields.count("turns_in_flight"),
        updated_unix_s=fields.number("updated_unix_s"),
        branches=tuple(map(_branch, branches, tokens)),
        # Heads of earlier versions lack these three.
        last_turn=_last_turn(contents.values),
        unkept=fields.later_text("unkept"),
        session_created_unix_us=fields.later_count("session_created_unix_us"),
    )


def _last_turn(values: Mapping[str, JsonValue]) -> LastTurn | None:
    if values.get("last_turn") is None:
        return None
    fields = Fields(Fields(values).mapping("last_turn"))
    diverged_at = fields.optional_number("diverged_at_token")
    told = fields.optional_mapping("split")
    return LastTurn(
        ended_unix_s=fields.number("ended_unix_s"),
        split=None if told is None else _turn_split(Fields(told)),
        tokens_total=fields.count("tokens_total"),
        tokens_restorable=fields.count("tokens_restorable"),
        diverged_at_token=None if diverged_at is None else fields.count("diverged_at_token"),
        causes=tuple(map(Cause.from_json, fields.mappings("causes"))),
        turn_id=fields.later_text("turn_id"),
        timing=_timing(fields.later_mapping("timing")),
    )


def _timing(told: Mapping[str, JsonValue] | None) -> TurnTiming | None:
    try:
        return None if told is None else TurnTiming.from_json(told)
    except InvalidInputError as error:
        raise StoreCorruptError(f"In a head: {error.message}") from error


def _branch(fields: Fields, tokens: TokenIds[int]) -> Branch:
    return Branch(
        tokens=tokens,
        adapter_digest=fields.text("adapter_digest"),
        cache_salt_hash=fields.text("cache_salt_hash"),
        updated_unix_s=fields.number("updated_unix_s"),
        split=_turn_split(Fields(fields.mapping("split"))),
        adapter_name=fields.later_text("adapter_name"),
        began_unix_s=fields.later_number("began_unix_s"),
    )


def _turn_split(fields: Fields) -> TurnSplit:
    return TurnSplit(
        prompt_tokens=fields.count("prompt_tokens"),
        vram_tokens=fields.count("vram_tokens"),
        ram_tokens=fields.count("ram_tokens"),
        disk_tokens=fields.count("disk_tokens"),
    )


def _split_tokens(data: bytes, lengths: list[int]) -> list[TokenIds[int]]:
    if sum(lengths) * TOKEN_BYTES != len(data):
        raise StoreCorruptError("The head's tokens do not fit its branches.")
    view, parts, start = memoryview(data), [], 0
    for length in lengths:
        end = start + length * TOKEN_BYTES
        parts.append(from_bytes(view[start:end]))
        start = end
    return parts
