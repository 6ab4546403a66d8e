"""Heads: the exact tokens that a session's turns left in an engine, one per branch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property

from sessiond.domain.canonical import JsonValue
from sessiond.domain.reasons import Cause
from sessiond.domain.tokens import TokenIds, common_prefix_tokens, head_digest

#: A session keeps this many branches (side calls such as titles make short-lived ones).
MAX_BRANCHES = 4


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

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files and between processes; its tokens go beside it."""
        return {
            "tokens": len(self.tokens),
            "adapter_digest": self.adapter_digest,
            "adapter_name": self.adapter_name,
            "cache_salt_hash": self.cache_salt_hash,
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
        """The conversation itself, not a side call such as a title.

        A turn's branch becomes the main one if it continues a branch, as the second turn after
        a compaction does, or has at least half of the main one's KV.
        """
        return self.branches[0] if self.branches else None


def begin_turn(head: Head, now_unix_s: float) -> Head:
    """Return the head with one more turn in flight."""
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=head.turns_in_flight + 1,
        updated_unix_s=now_unix_s,
    )


def end_turn(
    head: Head, branch: Branch | None, now_unix_s: float, turn: LastTurn | None = None
) -> Head:
    """Return the head after a turn; *branch* is ``None`` for one that left nothing."""
    branches = head.branches if branch is None else _merged(head.branches, branch)
    # A side call says nothing of the conversation: a title of it may be text all the same.
    is_main = branch is not None and branches[0] is branch
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=max(0, head.turns_in_flight - 1),
        updated_unix_s=now_unix_s,
        branches=branches,
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


def leads(head: Head, branch: Branch) -> bool:
    """Whether a turn that left *branch* would be one of the conversation, and no side call."""
    return _merged(head.branches, branch)[0] is branch


def add_branch(head: Head, branch: Branch, now_unix_s: float) -> Head:
    """Return the head with what a request left that is no turn, such as a resume."""
    return replace(
        head,
        sequence=head.sequence + 1,
        updated_unix_s=now_unix_s,
        branches=_merged(head.branches, branch),
    )


def _merged(branches: tuple[Branch, ...], new: Branch) -> tuple[Branch, ...]:
    """Put *new* in the place of the branch that it continues, or beside the others."""
    kept = [branch for branch in branches if not _continues(new, branch)]
    continues = len(kept) < len(branches)
    main = new if continues or _outweighs(new, branches[:1]) else branches[0]
    others = [branch for branch in (new, *kept) if branch is not main]
    others.sort(key=lambda b: b.updated_unix_s, reverse=True)
    if len(others) >= MAX_BRANCHES:
        # Neither the new branch is given up nor the longest: it is the dearest to recompute.
        longest = max((main, *others), key=lambda b: b.kv_tokens)
        others.remove(next(b for b in reversed(others) if b is not longest and b is not new))
    return (main, *others)


def _outweighs(new: Branch, main: tuple[Branch, ...]) -> bool:
    """Whether *new*, which continues nothing, is too long for a side call of the *main* branch."""
    if not main:
        return True
    (old,) = main
    alike = new.adapter_digest == old.adapter_digest
    if alike and common_prefix_tokens(new.tokens, old.tokens) >= new.kv_tokens:
        return False  # all of its KV is main's, which has more: such as after a resume
    return 2 * new.kv_tokens >= old.kv_tokens


def _continues(new: Branch, old: Branch) -> bool:
    """Whether *new* is the next turn of *old*.

    A reply re-tokenises differently and reasoning is stripped, so the common prefix may end
    inside old's last turn: half of old is asked for, not all.
    """
    if new.adapter_digest != old.adapter_digest:
        return False
    common = common_prefix_tokens(new.tokens, old.tokens)
    return len(new.tokens) >= len(old.tokens) and 2 * common >= len(old.tokens)
