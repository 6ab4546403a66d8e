"""Are the tokens those of a model that never suspends? Pure; the scores come from elsewhere.

Each token of an answer must be the most likely one after its own prefix: then, token by token,
the answer is the greedy one. Both sides compute in float32, in batches of other shapes, so
they differ in the last bits alone. What lies within :data:`NEAR_TIE` is no difference, and is
counted by itself. The log-probability that the engine tells of its own token is compared, too:
foreign KV shows there long before it changes a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Nats. Float32 with other batch shapes moves a log-probability of this model by less than 1e-4.
NEAR_TIE: Final = 5e-4
DRIFT: Final = 2e-3


@dataclass(frozen=True)
class Score:
    """What the reference says after one prefix."""

    best: int  #: the most likely token
    best_logprob: float
    logprob: float  #: of the token that was answered


@dataclass(frozen=True)
class Said:
    """One answer: what was computed from what."""

    session_id: str
    way: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()  #: of the tokens, as the engine tells; may be empty


@dataclass(frozen=True)
class Difference:
    """A token that is not the reference's, or not as likely as there."""

    session_id: str
    way: str
    position: int  #: in the answer
    prompt_tokens: int
    token: int
    expected: int
    margin: float  #: nats


@dataclass
class Verdict:
    """What the comparison found."""

    answers: int = 0
    tokens: int = 0
    near_ties: int = 0
    largest_drift: float = 0.0
    wrong: list[Difference] = field(default_factory=list)
    drifted: list[Difference] = field(default_factory=list)


def compare(scored: Iterable[tuple[Said, Sequence[Score]]]) -> Verdict:
    """Compare answers with the reference's scores, one for each token."""
    verdict = Verdict()
    for said, scores in scored:
        verdict.answers += 1
        verdict.tokens += len(said.tokens)
        for position, (token, score) in enumerate(zip(said.tokens, scores, strict=True)):
            _judge(verdict, said, position, token, score)
    return verdict


def _judge(verdict: Verdict, said: Said, position: int, token: int, score: Score) -> None:
    margin = score.best_logprob - score.logprob
    if token != score.best:
        if margin <= NEAR_TIE:
            verdict.near_ties += 1
        else:
            verdict.wrong.append(_difference(said, position, score, margin))
    if said.logprobs:
        drift = abs(said.logprobs[position] - score.logprob)
        verdict.largest_drift = max(verdict.largest_drift, drift)
        if not drift <= DRIFT:  # so that a NaN counts
            verdict.drifted.append(_difference(said, position, score, drift))


def _difference(said: Said, position: int, score: Score, margin: float) -> Difference:
    return Difference(
        session_id=said.session_id,
        way=said.way,
        position=position,
        prompt_tokens=len(said.prompt),
        token=said.tokens[position],
        expected=score.best,
        margin=margin,
    )
