"""Fits a curve of few parameters to measured times, some of which are far off.

The curve is ``scale x (amount x (1 + slowdown x others) + fixed + wait x min(1, others))``, where
``amount = terms[0] + shape[0] x terms[1] + …``. *terms* and *others* are known of each point, and
no parameter is negative. Beside others, each part of the amount takes longer, and even the
smallest amount waits for the engine's steps, which all others share. Errors count by their
ratio, so that short times matter as much as long ones. The fit has two passes. The first one
takes the scale as a median and counts no error more than a factor of 150, so that a fifth of
wild points hardly moves it; the second one leaves those out and averages the others.
What the points cannot tell, such as the shape of points of one size, stays as it was believed.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

#: How far a shape may be from what was believed before it must be shown: a factor of seven.
_BELIEF_DEVIATION: Final = 2.0
#: Times repeat no better than this: the deviation of their logarithms.
_LEAST_SPREAD: Final = 0.02
#: And mostly about so, as long as that is not known better.
_ASSUMED_SPREAD: Final = 0.2
#: Errors of so many deviations are left out in the second pass (Tukey's biweight).
_BIWEIGHT_REACH: Final = 4.7
_MEDIAN_TO_DEVIATION: Final = 1.4826
_MOST_ROUNDS: Final = 80
#: A smaller limit would take a minority that is alone on one side of a threshold for wild.
_MOST_LOG: Final = 5.0
_START_FACTORS: Final = (1.0, 1 / 15, 15.0, 1 / 225, 225.0)
#: Of the wait, which matters only beside others.
_START_WAITS: Final = (1.0, 1 / 30, 30.0)

#: The shape, then what is fixed, the wait and the slowdown.
_Parameters: TypeAlias = tuple[float, ...]
#: A mean or a median of weighted values.
_Centre: TypeAlias = Callable[[Sequence[float], Sequence[float]], float]


@dataclass(frozen=True)
class Point:
    """One measured time, and what it depends on."""

    terms: tuple[float, ...]
    seconds: float  #: more than 0
    weight: float = 1.0
    others: float = 0.0


@dataclass(frozen=True)
class Fit:
    """The parameters of a curve."""

    scale: float
    shape: tuple[float, ...]
    fixed: float  #: in units of the first term, as the wait is
    wait: float  #: beside other requests, however many, whatever the amount
    slowdown: float  #: of each other request, as a part of what the amount takes alone
    spread: float  #: standard deviation of the logarithms of the times around the curve


def fit(points: Sequence[Point], believed: Fit) -> Fit:
    """Return the curve of the points; takes some milliseconds.

    :param points: at least one, with a weight above 0 in all
    :param believed: the parameters, all above 0, where the points do not tell
    """
    problem = _Problem(points, believed)
    weights = [point.weight for point in points]

    def rough(parameters: _Parameters) -> float:
        capped = [
            min(abs(error), _MOST_LOG) for error in problem.centred(parameters, weights, _median)
        ]
        return _mean(capped, weights) + problem.pull(parameters, _ASSUMED_SPREAD)

    best_start = min(problem.starts(), key=rough)
    found = _search(rough, best_start, math.log(4.0), math.log(1.1))
    off = problem.centred(found, weights, _median)
    deviation = _median([abs(error) for error in off], weights) * _MEDIAN_TO_DEVIATION
    spread = max(_LEAST_SPREAD, deviation)
    sound = [w * _biweight(e / spread) for w, e in zip(weights, off, strict=True)]

    def fine(parameters: _Parameters) -> float:
        squared = [error**2 for error in problem.centred(parameters, sound, _mean)]
        return _mean(squared, sound) + problem.pull(parameters, spread)

    found = _search(fine, found, math.log(1.2), math.log(1.01))
    *shape, fixed, wait, slowdown = found
    scale = math.exp(_mean(problem.errors(found), sound))
    return Fit(scale, tuple(shape), fixed, wait, slowdown, spread)


class _Problem:
    """The points as columns, and what is believed of them."""

    def __init__(self, points: Sequence[Point], believed: Fit) -> None:
        self._logs = [math.log(point.seconds) for point in points]
        self._base, *self._terms = zip(*(point.terms for point in points), strict=True)
        self._others = [point.others for point in points]
        self.start = (*believed.shape, believed.fixed, believed.wait, believed.slowdown)

    def starts(self) -> Iterator[_Parameters]:
        """Return shapes far and near: a search from one alone may end where all is worse."""
        waits = _START_WAITS if any(self._others) else (1.0,)
        far = [_START_FACTORS] * (len(self.start) - 2)
        for factors in itertools.product(*far, waits, (1.0,)):
            yield tuple(map(operator.mul, self.start, factors))

    def errors(self, parameters: _Parameters) -> list[float]:
        """Return the logarithm of each time in units of the scale, as if that were 1."""
        *shape, fixed, wait, slowdown = parameters
        amounts: Sequence[float] = self._base
        for part, terms in zip(shape, self._terms, strict=True):
            amounts = [sofar + part * term for sofar, term in zip(amounts, terms, strict=True)]
        columns = zip(self._logs, amounts, self._others, strict=True)
        log = math.log  # looked up once: this runs thousands of times
        return [
            time - log(amount + fixed + wait * min(1.0, others) + slowdown * amount * others)
            for time, amount, others in columns
        ]

    def centred(
        self, parameters: _Parameters, weights: Sequence[float], centre: _Centre
    ) -> list[float]:
        """Return the errors that the best scale leaves."""
        errors = self.errors(parameters)
        middle = centre(errors, weights)
        return [error - middle for error in errors]

    def pull(self, parameters: _Parameters, spread: float) -> float:
        """Return what it costs to stray from the belief, in units of squared errors."""
        pairs = zip(parameters, self.start, strict=True)
        strayed = sum(math.log(now / then) ** 2 for now, then in pairs)
        return (spread / _BELIEF_DEVIATION) ** 2 * strayed / len(self._logs)


def _search(
    loss: Callable[[_Parameters], float], start: _Parameters, step: float, finest: float
) -> _Parameters:
    """Return where *loss* is least: try each parameter larger and smaller by ever finer steps."""
    best, least = start, loss(start)
    for _ in range(_MOST_ROUNDS):
        before = least
        for number, value in enumerate(best):
            for factor in (math.exp(step), math.exp(-step)):
                tried = (*best[:number], value * factor, *best[number + 1 :])
                found = loss(tried)
                if found < least:
                    best, least = tried, found
        if least < before:
            continue
        step /= 2.0
        if step < finest:
            break
    return best


def _biweight(deviations: float) -> float:
    inside = max(0.0, 1.0 - (deviations / _BIWEIGHT_REACH) ** 2)
    return inside**2


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    pairs = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / sum(weights)


def _median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the value with half of the weight on each side."""
    half = sum(weights) / 2.0
    passed = 0.0
    ordered = sorted(zip(values, weights, strict=True))
    for value, weight in ordered:
        passed += weight
        if passed >= half:
            return value
    return ordered[-1][0]
