"""Heads: the exact tokens that a session's turns left in an engine, one per branch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sessiond.domain.tokens import TokenIds, common_prefix_tokens

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
class Branch:
    """The end of one line of a conversation."""

    tokens: TokenIds[int]  #: prompt and output
    adapter_digest: str
    cache_salt_hash: str
    updated_unix_s: float
    split: TurnSplit

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV exists: the last sampled token was never computed."""
        return max(0, len(self.tokens) - 1)


@dataclass(frozen=True)
class Head:
    """What one engine knows of a session. A hint: the newest complete one wins."""

    tenant: str
    session: str
    engine_id: str
    sequence: int
    turns_in_flight: int
    updated_unix_s: float
    branches: tuple[Branch, ...]

    @property
    def main(self) -> Branch | None:
        """The branch that a suspend takes: the longest, the newest among equals."""
        return max(self.branches, key=lambda b: (b.kv_tokens, b.updated_unix_s), default=None)


def begin_turn(head: Head, now_unix_s: float) -> Head:
    """Return the head with one more turn in flight."""
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=head.turns_in_flight + 1,
        updated_unix_s=now_unix_s,
    )


def end_turn(head: Head, branch: Branch | None, now_unix_s: float) -> Head:
    """Return the head after a turn; *branch* is ``None`` for one that left nothing."""
    return replace(
        head,
        sequence=head.sequence + 1,
        turns_in_flight=max(0, head.turns_in_flight - 1),
        updated_unix_s=now_unix_s,
        branches=head.branches if branch is None else _merged(head.branches, branch),
    )


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
    kept = tuple(branch for branch in branches if not _continues(new, branch))
    newest_first = sorted((new, *kept), key=lambda b: b.updated_unix_s, reverse=True)
    if len(newest_first) <= MAX_BRANCHES:
        return tuple(newest_first)
    longest = max(newest_first, key=lambda b: b.kv_tokens)
    # The longest branch is never the one that is given up: it is the dearest to recompute.
    others = [branch for branch in newest_first if branch is not longest]
    return (longest, *others[: MAX_BRANCHES - 1])


def _continues(new: Branch, old: Branch) -> bool:
    """Whether *new* is the next turn of *old*.

    A reply re-tokenises differently and reasoning is stripped, so the common prefix may end
    inside old's last turn: half of old is asked for, not all.
    """
    if new.adapter_digest != old.adapter_digest:
        return False
    common = common_prefix_tokens(new.tokens, old.tokens)
    return len(new.tokens) >= len(old.tokens) and 2 * common >= len(old.tokens)
