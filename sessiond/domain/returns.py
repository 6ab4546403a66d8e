"""How likely sessions that went idle come back, learned per tenant and per kind of agent.

Each outcome counts less as it grows old. A kind of which little is known is taken for one like
the others of its tenant, and such a tenant for one like all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from sessiond.domain.canonical import JsonValue
from sessiond.domain.errors import InvalidInputError

_HALF_LIFE_S: Final = 7 * 86_400.0
#: Before anything is known, one of two comes back; that counts like so many outcomes.
_FIRST_CHANCE: Final = 0.5
_FIRST_OUTCOMES: Final = 2.0
#: What is known of all others counts like so many outcomes of one's own.
_INHERITED_OUTCOMES: Final = 4.0
#: So many tenants, and so many kinds, are remembered.
MOST_TALLIES: Final = 1024
_VERSION: Final = 1


@dataclass(frozen=True)
class Tally:
    """Outcomes that were counted, in outcomes of the time ``at_unix_s``."""

    came: float = 0.0
    went: float = 0.0
    at_unix_s: float = 0.0

    def at(self, now_unix_s: float) -> Tally:
        """Return what they count later."""
        halves = max(0.0, now_unix_s - self.at_unix_s) / _HALF_LIFE_S
        part = 0.5 ** min(halves, 1000.0)
        return Tally(self.came * part, self.went * part, max(now_unix_s, self.at_unix_s))

    def plus(self, now_unix_s: float, *, came_back: bool) -> Tally:
        """Return it with one more outcome."""
        then = self.at(now_unix_s)
        return replace(then, came=then.came + came_back, went=then.went + (not came_back))

    def chance(self, believed: float, outcomes: float) -> float:
        """Return the expected share that comes back (the mean of a Beta distribution).

        :param believed: the share without any outcome, which counts like so many *outcomes*
        """
        return (self.came + believed * outcomes) / (self.came + self.went + outcomes)


#: A tenant, and a kind of its agents: the model that its sessions are for.
Kind = tuple[str, str]
K = TypeVar("K", str, Kind)


@dataclass(frozen=True)
class Returns:
    """What became of sessions that went idle, whether or not they were written."""

    everybody: Tally = Tally()
    tenants: Mapping[str, Tally] = field(default_factory=dict)
    kinds: Mapping[Kind, Tally] = field(default_factory=dict)

    def with_outcome(self, kind: Kind, now_unix_s: float, *, came_back: bool) -> Returns:
        """Return it with one more outcome: a session took another turn, or is given up."""
        return Returns(
            self.everybody.plus(now_unix_s, came_back=came_back),
            _counted(self.tenants, kind[0], now_unix_s, came_back=came_back),
            _counted(self.kinds, kind, now_unix_s, came_back=came_back),
        )

    def chance(self, kind: Kind, now_unix_s: float) -> float:
        """Return how likely an idle session of this kind comes back, from 0 to 1."""
        everybody = self.everybody.at(now_unix_s).chance(_FIRST_CHANCE, _FIRST_OUTCOMES)
        tenant = self.tenants.get(kind[0], Tally()).at(now_unix_s)
        own = self.kinds.get(kind, Tally()).at(now_unix_s)
        return own.chance(tenant.chance(everybody, _INHERITED_OUTCOMES), _INHERITED_OUTCOMES)

    def outcomes(self, kind: Kind, now_unix_s: float) -> float:
        """Return how many outcomes of this very kind are known; old ones count less."""
        own = self.kinds.get(kind, Tally()).at(now_unix_s)
        return own.came + own.went

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files."""
        return {
            "version": _VERSION,
            "everybody": _row(self.everybody),
            "tenants": [[name, *_row(tally)] for name, tally in sorted(self.tenants.items())],
            "kinds": [[*kind, *_row(tally)] for kind, tally in sorted(self.kinds.items())],
        }


def read_returns(value: JsonValue) -> Returns:
    """Read what :meth:`Returns.as_json` wrote.

    :raises InvalidInputError: it is anything else.
    """
    try:
        if not isinstance(value, Mapping) or value["version"] != _VERSION:
            raise ValueError
        tenants = [(_text(row[0]), _tally(row[1:])) for row in _rows(value["tenants"])]
        kinds = [((_text(row[0]), _text(row[1])), _tally(row[2:])) for row in _rows(value["kinds"])]
        return Returns(_tally(_list(value["everybody"])), dict(tenants), dict(kinds))
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidInputError(f"These are no returns of version {_VERSION}.") from error


def _counted(
    tallies: Mapping[K, Tally], key: K, now_unix_s: float, *, came_back: bool
) -> dict[K, Tally]:
    """Return the tallies with one more outcome; the one that counts least makes room."""
    counted = {**tallies, key: tallies.get(key, Tally()).plus(now_unix_s, came_back=came_back)}
    while len(counted) > MOST_TALLIES:
        now = {one: tally.at(now_unix_s) for one, tally in counted.items() if one != key}
        del counted[min(now, key=lambda one: now[one].came + now[one].went)]
    return counted


def _row(tally: Tally) -> list[JsonValue]:
    return [tally.came, tally.went, tally.at_unix_s]


def _tally(row: list[JsonValue]) -> Tally:
    came, went, at_unix_s = row
    for number in row:
        # An integer of hundreds of digits is JSON, too, and no float.
        if type(number) not in (int, float) or not 0.0 <= number < 1e15:  # type: ignore[operator]
            raise ValueError(number)
    return Tally(float(came), float(went), float(at_unix_s))  # type: ignore[arg-type]


def _rows(value: JsonValue) -> list[list[JsonValue]]:
    rows = _list(value)[:MOST_TALLIES]
    return [_list(row) for row in rows]


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise ValueError(value)
    return value


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value
