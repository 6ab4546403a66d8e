"""What became of one turn's context, told from where its prompt tokens came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessiond.domain.heads import LastTurn
from sessiond.domain.outcomes import Outcome
from sessiond.domain.reasons import Cause
from sessiond.domain.tokens import whole_chunk_tokens


@dataclass(frozen=True)
class TurnOutcome:
    """How one turn went, as far as that is proven to be of this turn."""

    outcome: Outcome | None = None  #: ``None``: not known
    tokens_total: int = 0  #: of the context that the prompt was compared with
    tokens_restored: int = 0  #: of the prompt, not computed: from VRAM, RAM and disk together
    disk_tokens: int = 0  #: of them, from the snapshot
    causes: tuple[Cause, ...] = field(default=())


def outcome_of_turn(turn: LastTurn, chunk_tokens: int) -> TurnOutcome:
    """Return what a turn amounts to.

    Measured by the whole chunks of the context that its prompt goes on with: what the prompt
    does not repeat cannot be used again, and less than a chunk is never kept.
    """
    split = turn.split
    if split is None:
        return TurnOutcome(causes=turn.causes)
    shared = turn.tokens_total if turn.diverged_at_token is None else turn.diverged_at_token
    usable = min(shared, max(0, split.prompt_tokens - 1))
    return TurnOutcome(
        outcome=_outcome(
            whole_chunk_tokens(usable, chunk_tokens), split.cached_tokens, split.disk_tokens
        ),
        tokens_total=turn.tokens_total,
        tokens_restored=split.cached_tokens,
        disk_tokens=split.disk_tokens,
        causes=turn.causes,
    )


def _outcome(usable_tokens: int, cached_tokens: int, disk_tokens: int) -> Outcome:
    if cached_tokens <= 0:
        return Outcome.RECOMPUTED
    if cached_tokens < usable_tokens:
        return Outcome.PARTIAL
    return Outcome.RESTORED if disk_tokens else Outcome.WARM
