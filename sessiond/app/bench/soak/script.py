"""What the agents and the conductor of a soak do. Pure: the seed decides all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, TypeVar

from sessiond.domain.session import OnEvicted

_T = TypeVar("_T")


class Kind(StrEnum):
    """What an agent does next."""

    TURN = "turn"
    HANG_UP = "hang_up"  #: a streamed turn whose client leaves before its end
    IDLE = "idle"
    SUSPEND = "suspend"
    RESUME = "resume"
    FORK = "fork"
    DELETE = "delete"


class Way(StrEnum):
    """How a turn reaches the engine."""

    STREAMED = "streamed"  #: through the gateway
    WHOLE = "whole"  #: through the gateway, not streamed
    CONTINUED = "continued"  #: through the gateway, going on with the session's exact tokens
    DIRECT = "direct"  #: with a ticket


class Deed(StrEnum):
    """What the conductor does."""

    KILL_DAEMON = "kill_daemon"
    KILL_ENGINE = "kill_engine"
    REST = "rest"  #: all agents pause, and what the servers hold then is what they start from


@dataclass(frozen=True)
class Step:
    """One step of an agent. Every step has all fields: what it leaves out changes no later one."""

    kind: Kind
    way: Way
    place: float  #: which of its conversations, from 0 to 1
    text: float  #: which piece of the text, from 0 to 1
    reply_tokens: int  #: at most
    hear_tokens: int  #: before it hangs up
    idle_s: float
    on_evicted: OnEvicted  #: of a session that begins


@dataclass(frozen=True)
class Moment:
    """When the conductor does something, in seconds from the start."""

    at_s: float
    deed: Deed


_KINDS: Final = {
    Kind.TURN: 46,
    Kind.HANG_UP: 7,
    Kind.IDLE: 14,
    Kind.SUSPEND: 13,
    Kind.RESUME: 9,
    Kind.FORK: 7,
    Kind.DELETE: 4,
}
_WAYS: Final = {Way.STREAMED: 5, Way.WHOLE: 2, Way.CONTINUED: 2, Way.DIRECT: 2}
_ON_EVICTED: Final = {OnEvicted.PREFIX: 6, OnEvicted.RECOMPUTE: 2, OnEvicted.SKIP: 1}
#: After so many steps an agent has tried all kinds.
FIRST_STEPS: Final = 2 * (len(Kind) - 1)
_REPLY_TOKENS: Final = (6, 20)
_HEAR_TOKENS: Final = (1, 5)
_IDLE_S: Final = (0.2, 3.0)

_ENGINE_LIFE_S: Final = 120.0
_DAEMON_LIFE_S: Final = 100.0
_REST_AFTER_S: Final = 30.0
#: A run of this length has a second rest, after the last engine was started.
_LONG_S: Final = 240.0


def script(seed: int, agent: int) -> Iterator[Step]:
    """Yield the steps of one agent, without end.

    All kinds come among the first ones, so that a short run has them all: first a turn, then
    the others in an order of the agent's own, each after another turn.
    """
    chance = random.Random(f"{seed}/{agent}")  # noqa: S311 - to be repeated, not to be secret
    others = [kind for kind in Kind if kind is not Kind.TURN]
    first = [kind for other in chance.sample(others, len(others)) for kind in (Kind.TURN, other)]
    for number in count():
        drawn = _one_of(chance, _KINDS)
        yield Step(
            kind=first[number] if number < FIRST_STEPS else drawn,
            way=_one_of(chance, _WAYS),
            place=chance.random(),
            text=chance.random(),
            reply_tokens=chance.randint(*_REPLY_TOKENS),
            hear_tokens=chance.randint(*_HEAR_TOKENS),
            idle_s=chance.uniform(*_IDLE_S),
            on_evicted=_one_of(chance, _ON_EVICTED),
        )


def timeline(seconds: float) -> list[Moment]:
    """Return what the conductor does in a run of this length.

    Daemons are killed in the first half, so that the last one lives long enough to show what
    it does not give back.
    """
    daemons = max(1, round(seconds / 2 / _DAEMON_LIFE_S))
    engines = max(1, round(seconds / _ENGINE_LIFE_S))
    killed_s = [seconds / 2 * (number + 0.1) / daemons for number in range(daemons)]
    moments = [Moment(at_s, Deed.KILL_DAEMON) for at_s in killed_s]
    moments += [
        Moment(seconds * 2 / 3 * (number + 0.35) / engines, Deed.KILL_ENGINE)
        for number in range(engines)
    ]
    moments.append(Moment(killed_s[-1] + min(_REST_AFTER_S, seconds / 8), Deed.REST))
    if seconds >= _LONG_S:
        moments.append(Moment(seconds * 3 / 4, Deed.REST))
    return sorted(moments, key=lambda moment: moment.at_s)


def _one_of(chance: random.Random, weights: dict[_T, int]) -> _T:
    (found,) = chance.choices(list(weights), list(weights.values()))
    return found
