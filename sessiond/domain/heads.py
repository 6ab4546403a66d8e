"""Heads: the exact tokens that a session's turns left in an engine, one per branch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property

from sessiond.domain.canonical import JsonValue
from sessiond.domain.lines import BEFORE_ALL, may_lead, place
from sessiond.domain.reasons import Cause
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import TokenIds, head_digest


@dataclass(frozen=True)
class TurnSplit:
    """Where the prompt tokens of a turn came from."""

    prompt_tokens: int = 0
    vram_tokens: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0

    @property
    def cached_tokens(self) -> int:
        """Tokens that were not computed."""
        return self.vram_tokens + self.ram_tokens + self.disk_tokens


@dataclass(frozen=True)
class LastTurn:
    """How the newest turn went."""

    ended_unix_s: float
    split: TurnSplit | None  #: ``None`` for one that was not kept: nobody knows
    #: Of the context that its prompt was compared with: the snapshot's, or an earlier turn's.
    tokens_total: int = 0
    tokens_restorable: int = 0  #: of the snapshot that its ticket named
    diverged_at_token: int | None = None  #: the first token in which prompt and context differ
    causes: tuple[Cause, ...] = ()
    #: The operation id of its ticket; empty where an earlier version wrote the head.
    turn_id: str = ""
    #: ``None`` where nothing was measured, and where an earlier version wrote the head.
    timing: TurnTiming | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files and events, and between processes."""
        return {
            "ended_unix_s": self.ended_unix_s,
            "split": asdict(self.split) if self.split else None,
            "tokens_total": self.tokens_total,
            "tokens_restorable": self.tokens_restorable,
            "diverged_at_token": self.diverged_at_token,
            "causes": [cause.as_json() for cause in self.causes],
            "turn_id": self.turn_id,
            "timing": self.timing.as_json() if self.timing else None,
        }


@dataclass(frozen=True)
class Branch:
    """The end of one line of a conversation."""

    tokens: TokenIds[int]  #: prompt and output
    adapter_digest: str
    cache_salt_hash: str
    updated_unix_s: float
    split: TurnSplit
    adapter_name: str = ""  #: under which the engine serves the adapter
    #: When its line's first turn ended, or :data:`~sessiond.domain.lines.BEFORE_ALL`.
    began_unix_s: float = BEFORE_ALL

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files and between processes; its tokens go beside it."""
        return {
            "tokens": len(self.tokens),
            "adapter_digest": self.adapter_digest,
            "adapter_name": self.adapter_name,
            "cache_salt_hash": self.cache_salt_hash,
            "began_unix_s": self.began_unix_s,
            "updated_unix_s": self.updated_unix_s,
            "split": asdict(self.split),
        }

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV exists: the last sampled token was never computed."""
        return max(0, len(self.tokens) - 1)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its tokens, as hex."""
        return head_digest(self.tokens)


@dataclass(frozen=True)
class Head:
    """What one engine knows of a session. A hint: the newest complete one wins."""

    tenant: str
    session: str
    engine_id: str
    sequence: int
    turns_in_flight: int
    updated_unix_s: float
    branches: tuple[Branch, ...]  #: the main one first, then the newest first
    last_turn: LastTurn | None = None  #: ``None`` before the first
    #: Code of the reason why a turn newer than the main branch left nothing that can be kept;
    #: else empty.
    unkept: str = ""
    #: Of the session that it tells of, as its tickets said; 0: not known.
    session_created_unix_us: int = 0

    @property
    def unkept_cause(self) -> Cause | None:
        """Why a suspend would leave out the newest turn; ``None`` where nothing is in the way."""
        if not self.unkept:
            return None
        told = self.last_turn.causes if self.last_turn else ()
        named = (cause for cause in told if cause.reason.value == self.unkept)
        return next(named, Cause.from_json({"reason": self.unkept}))

    @property
    def main(self) -> Branch | None:
        """The conversation itself, not a side call: see :mod:`sessiond.domain.lines`."""
        return self.branches[0] if self.branches else None


def head_for(known: Head, created_unix_us: int) -> Head | None:
    """Return what is known of the session created then; ``None``: it was deleted meanwhile.

    A session's id may be used again, while turns of the deleted one still run: what they leave is
    no part of the new one, nor is what it has left in the engine.

    :param created_unix_us: 0: not known
    """
    created = created_unix_us or known.session_created_unix_us
    if created < known.session_created_unix_us:
        return None
    if created == known.session_created_unix_us:
        return known
    if known.session_created_unix_us == 0 and known.updated_unix_s >= created / 1_000_000:
        return replace(since(created / 1_000_000, known), session_created_unix_us=created)
    return Head(
        tenant=known.tenant,
        session=known.session,
        engine_id=known.engine_id,
        sequence=known.sequence,
        turns_in_flight=0,
        updated_unix_s=known.updated_unix_s,
        branches=(),
        session_created_unix_us=created,
    )


def since(unix_s: float, head: Head) -> Head:
    """Return the head without the branches that had no turn since then."""
    ours = tuple(branch for branch in head.branches if branch.updated_unix_s >= unix_s)
    return head if len(ours) == len(head.branches) else replace(head, branches=ours)


def begin_turn(head: Head, now_unix_s: float) -> Head:
    """Return the head with one more turn in flight."""
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=head.turns_in_flight + 1,
        updated_unix_s=now_unix_s,
    )


def end_turn(
    head: Head,
    branch: Branch | None,
    now_unix_s: float,
    turn: LastTurn | None = None,
    *,
    is_known: bool = False,
) -> Head:
    """Return the head after a turn; *branch* is ``None`` for one that left nothing.

    :param is_known: it continues the snapshot that its ticket names
    """
    placed = None if branch is None else place(head.branches, branch, is_known=is_known)
    # A side call says nothing of the conversation: a title of it may be text all the same.
    is_main = placed is not None and placed.leads
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=max(0, head.turns_in_flight - 1),
        updated_unix_s=now_unix_s,
        branches=head.branches if placed is None else placed.branches,
        last_turn=turn or head.last_turn,
        unkept="" if is_main else head.unkept,
    )


def pass_turn(head: Head, turn: LastTurn) -> Head:
    """Return the head after the arrival of a turn that is served and not kept.

    What it has of the session's context is more than the main branch: no suspend may store
    that as if it were the whole. The turn's first cause says why.
    """
    return replace(
        head,
        sequence=head.sequence + 1,
        updated_unix_s=turn.ended_unix_s,
        last_turn=turn,
        unkept=turn.causes[0].reason.value,
    )


def may_be_main(head: Head, branch: Branch) -> bool:
    """Whether a turn that is not kept, and would have left *branch*, may be no side call."""
    return may_lead(head.branches, branch)


def add_branch(head: Head, branch: Branch, now_unix_s: float) -> Head:
    """Return the head with what a request left that is no turn: a resume, of a snapshot."""
    return replace(
        head,
        sequence=head.sequence + 1,
        updated_unix_s=now_unix_s,
        branches=place(head.branches, branch, is_known=True).branches,
    )
