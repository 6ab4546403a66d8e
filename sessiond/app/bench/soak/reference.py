"""The reference: a model that knows no sessions scores every answer, after the soak.

Conversations repeat themselves, turn after turn. So answers are scored in the order of their
tokens, and what one has in common with the one before is not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sessiond.app.bench.soak.comparison import Said, Score
from sessiond.domain.tokens import common_prefix_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Model(Protocol):
    """A model with the KV of one sequence."""

    def rewind(self, tokens: int) -> None:
        """Forget everything behind the first so many tokens."""

    def feed(self, ids: Sequence[int], last: int) -> NDArray[np.float32]:
        """Go on with these tokens; return the log-probabilities after each of the *last* ones.

        :return: one row for each, with a value for each token of the vocabulary
        """


def scored(model: Model, answers: Sequence[Said]) -> Iterator[tuple[Said, list[Score]]]:
    """Yield every answer that has tokens, with the scores of these. Equal ones are scored once."""
    held: tuple[int, ...] = ()
    before: tuple[Said, list[Score]] | None = None
    for said in sorted(answers, key=lambda one: (one.prompt, one.tokens)):
        if not said.tokens:
            continue
        if before and (before[0].prompt, before[0].tokens) == (said.prompt, said.tokens):
            yield said, before[1]
            continue
        # The last token of an answer needs no successor, its first one the prompt's last row.
        wanted = said.prompt + said.tokens[:-1]
        common = min(common_prefix_tokens(held, wanted), len(said.prompt) - 1)
        model.rewind(common)
        rows = model.feed(wanted[common:], len(said.tokens))
        held = wanted
        before = said, _scores(rows, said.tokens)
        yield before


def _scores(rows: NDArray[np.float32], tokens: Sequence[int]) -> list[Score]:
    best = rows.argmax(axis=1)
    return [
        Score(int(top), float(row[top]), float(row[token]))
        for row, top, token in zip(rows, best, tokens, strict=True)
    ]
