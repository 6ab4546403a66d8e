from __future__ import annotations

import pytest

from sessiond.domain.heads import LastTurn, TurnSplit
from sessiond.domain.outcomes import Outcome
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.turnoutcome import TurnOutcome, outcome_of_turn

CHUNK = 16


@pytest.mark.parametrize(
    ("met", "prompt", "cached", "expected"),  # met: tokens, and where they diverge
    [
        ((0, None), 100, (0, 0, 0), Outcome.RECOMPUTED),  # the first turn
        ((0, None), 100, (48, 0, 0), Outcome.WARM),  # nothing to compare with, and cached
        ((100, None), 120, (96, 0, 0), Outcome.WARM),
        ((100, None), 120, (48, 48, 0), Outcome.WARM),
        ((100, None), 120, (0, 0, 96), Outcome.RESTORED),
        ((100, None), 120, (16, 0, 80), Outcome.RESTORED),
        ((100, None), 120, (16, 0, 64), Outcome.PARTIAL),
        ((100, None), 120, (16, 0, 0), Outcome.PARTIAL),
        ((100, None), 120, (0, 0, 0), Outcome.RECOMPUTED),
        ((100, 50), 120, (0, 0, 48), Outcome.RESTORED),  # all that the prompt repeats
        ((100, 50), 120, (0, 0, 32), Outcome.PARTIAL),
        ((100, None), 96, (0, 0, 80), Outcome.RESTORED),  # the last token is always computed
        ((10, None), 120, (0, 0, 0), Outcome.RECOMPUTED),  # less than a chunk
    ],
)
def test_a_turn_is_measured_by_what_its_prompt_repeats(
    met: tuple[int, int | None], prompt: int, cached: tuple[int, int, int], expected: Outcome
) -> None:
    total, diverged = met
    turn = LastTurn(1.0, TurnSplit(prompt, *cached), total, 0, diverged)
    told = outcome_of_turn(turn, CHUNK)
    assert told.outcome is expected
    assert (told.tokens_total, told.tokens_restored) == (total, sum(cached))
    assert told.disk_tokens == cached[2]


def test_a_turn_that_was_not_kept_is_unknown_and_says_why() -> None:
    causes = (Cause(Reason.NOT_TEXT),)
    assert outcome_of_turn(LastTurn(1.0, None, causes=causes), CHUNK) == TurnOutcome(causes=causes)
