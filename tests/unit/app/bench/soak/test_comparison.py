from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sessiond.app.bench.soak.comparison import DRIFT, NEAR_TIE, Said, Score, compare
from sessiond.app.bench.soak.reference import scored

_VOCABULARY = 50


class Table:
    """A model whose next token depends on all before it; counts what it computes."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.computed = 0

    def rewind(self, tokens: int) -> None:
        del self.held[tokens:]

    def feed(self, ids: Sequence[int], last: int) -> NDArray[np.float32]:
        rows = []
        for token in ids:
            self.held.append(token)
            rows.append(likely(self.held))
        self.computed += len(ids)
        return np.array(rows[-last:], dtype=np.float32)


def likely(prefix: Sequence[int]) -> NDArray[np.float64]:
    weights = np.random.default_rng(list(prefix)).normal(0, 3, _VOCABULARY)
    found: NDArray[np.float64] = weights - np.log(np.exp(weights).sum())
    return found


def greedy(session: str, prompt: Sequence[int], length: int) -> Said:
    """Return what the model itself would answer."""
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(length):
        row = likely([*prompt, *tokens])
        tokens.append(int(row.argmax()))
        logprobs.append(float(row.max()))
    return Said(session, "streamed", tuple(prompt), tuple(tokens), tuple(logprobs))


def conversation() -> list[Said]:
    """Return the turns of a session, and those of a fork of it."""
    first = greedy("one", range(1, 20), 6)
    after = (*first.prompt, *first.tokens)
    second = greedy("one", (*after, 7, 8, 9), 6)
    fork = greedy("fork", (*after, 7, 4), 6)
    again = replace(first, session_id="again")
    cut = replace(first, session_id="cut", tokens=first.tokens[:2], logprobs=first.logprobs[:2])
    return [second, first, fork, again, cut, replace(first, tokens=(), logprobs=())]


def test_right_answers_are_right_and_computed_once() -> None:
    answers, model = conversation(), Table()
    verdict = compare(scored(model, answers))
    assert (verdict.answers, verdict.tokens) == (5, 26)
    assert (verdict.wrong, verdict.drifted, verdict.near_ties) == ([], [], 0)
    assert verdict.largest_drift < 1e-5
    # From scratch it would be 124: what a turn repeats of the one before is there already.
    assert model.computed < 60


@pytest.mark.parametrize("place", range(5))
def test_a_wrong_token_is_found_in_every_answer(place: int) -> None:
    answers = conversation()
    said = answers[place]
    tokens = list(said.tokens)
    right, tokens[1] = tokens[1], (tokens[1] + 1) % _VOCABULARY
    answers[place] = replace(said, tokens=tuple(tokens), logprobs=())

    verdict = compare(scored(Table(), answers))

    first = next(one for one in verdict.wrong if one.session_id == said.session_id)
    assert (first.position, first.expected, first.token) == (1, right, tokens[1])
    assert first.margin > NEAR_TIE
    assert {one.session_id for one in verdict.wrong} == {said.session_id}


def one_score(margin: float, drift: float, token: int = 3) -> list[tuple[Said, list[Score]]]:
    said = Said("s", "whole", (1, 2), (token,), (-1.0 - margin + drift,))
    return [(said, [Score(best=4, best_logprob=-1.0, logprob=-1.0 - margin)])]


@pytest.mark.parametrize(
    ("margin", "near_ties", "wrong"),
    [(0.0, 1, 0), (NEAR_TIE * 0.9, 1, 0), (NEAR_TIE * 1.1, 0, 1), (5.0, 0, 1)],
)
def test_near_ties_are_counted_by_themselves(margin: float, near_ties: int, wrong: int) -> None:
    verdict = compare(one_score(margin, 0.0))
    assert (verdict.near_ties, len(verdict.wrong), len(verdict.drifted)) == (near_ties, wrong, 0)


@pytest.mark.parametrize("drift", [DRIFT * 1.1, -DRIFT * 1.1, math.nan, math.inf])
def test_the_right_token_with_another_probability_is_told(drift: float) -> None:
    verdict = compare(one_score(0.0, drift, token=4))
    assert (len(verdict.wrong), len(verdict.drifted)) == (0, 1)


def test_scores_that_do_not_fit_their_answer_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare([(Said("s", "whole", (1,), (2, 3)), [Score(2, 0.0, 0.0)])])
