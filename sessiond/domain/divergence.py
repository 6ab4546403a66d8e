"""Where the prompt of a turn leaves the contexts that were known before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessiond.domain.tokens import TokenIds, common_prefix_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Meeting:
    """A prompt beside a context that was known before it."""

    tokens_total: int  #: of the context
    prompt_tokens: int
    common_tokens: int  #: at the beginning of both

    @property
    def diverged_at_token(self) -> int | None:
        """The first token that differs; ``None`` if one of the two continues the other."""
        shorter = min(self.tokens_total, self.prompt_tokens)
        return self.common_tokens if self.common_tokens < shorter else None

    @property
    def goes_on(self) -> bool:
        """Whether the prompt is the context's next one: no shorter, and with half of it."""
        is_shorter = self.prompt_tokens < self.tokens_total
        return not is_shorter and 2 * self.common_tokens >= self.tokens_total


def meet(prompt: TokenIds[int], context: TokenIds[int]) -> Meeting:
    """Compare a prompt with one context."""
    return Meeting(len(context), len(prompt), common_prefix_tokens(prompt, context))


def closest(meetings: Iterable[Meeting]) -> Meeting | None:
    """Return the meeting with the most in common, of equals the one with the longest context."""
    return max(meetings, key=_worth, default=None)


def _worth(meeting: Meeting) -> tuple[int, int]:
    return meeting.common_tokens, meeting.tokens_total
