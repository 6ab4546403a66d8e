"""Whether a snapshot is worth writing: a pure rule."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.errors import InvalidInputError
from sessiond.domain.reasons import Cause, Reason

_DAY_S: Final = 86_400.0


@dataclass(frozen=True)
class WriteBudget:
    """Bytes that may be written in a day, since drives wear out.

    What was written is paid off evenly over the day, so a whole day's bytes may be written at
    once after a quiet day. How much a suspend writes is known only afterwards: the last one may
    overdraw it.
    """

    bytes_per_day: int = 0  #: 0: any number
    owed_bytes: float = 0.0  #: written, and not paid off at ``at_unix_s``
    at_unix_s: float = 0.0

    def left(self, now_unix_s: float) -> float:
        """Return how many bytes may be written now; under 0 if it is overdrawn."""
        if not self.bytes_per_day:
            return math.inf
        return self.bytes_per_day - self._owed(now_unix_s)

    def spend(self, size_bytes: int, now_unix_s: float) -> WriteBudget:
        """Return it when so many bytes have been written."""
        owed_bytes = self._owed(now_unix_s) + size_bytes
        return replace(self, owed_bytes=owed_bytes, at_unix_s=now_unix_s)

    def as_json(self) -> dict[str, JsonValue]:
        """Return what has to outlive a restart; the limit itself is configured."""
        return {"owed_bytes": self.owed_bytes, "at_unix_s": self.at_unix_s}

    def read(self, value: JsonValue) -> WriteBudget:
        """Return it with what :meth:`as_json` wrote.

        :raises InvalidInputError: it is anything else.
        """
        found = value if isinstance(value, Mapping) else {}
        owed_bytes, at_unix_s = (_amount(found.get(name)) for name in ("owed_bytes", "at_unix_s"))
        if owed_bytes is None or at_unix_s is None:
            raise InvalidInputError("This is no write budget.")
        return replace(self, owed_bytes=owed_bytes, at_unix_s=at_unix_s)

    def _owed(self, now_unix_s: float) -> float:
        # A clock that was set back pays nothing off, and nothing twice.
        paid = max(0.0, now_unix_s - self.at_unix_s) * self.bytes_per_day / _DAY_S
        return max(0.0, self.owed_bytes - paid)


@dataclass(frozen=True)
class WriteFacts:
    """What is known of a snapshot before it is written."""

    tenant: str
    session: str
    tokens: int  #: that it would have, in whole chunks
    new_bytes: int  #: that it would write, as far as that is known
    return_chance: float  #: from 0 to 1: see ``domain.returns``
    budget_left_bytes: float  #: of the day
    spare_bytes: float  #: free beyond the floor, before it is written
    now_unix_s: float
    saved_s: float | None = None  #: by loading instead of computing; ``None``: not known
    is_explicit: bool = False  #: a person or an agent asked for it
    outcomes: float = math.inf  #: that the chance was learned from


@dataclass(frozen=True)
class WriteLimits:
    """What a snapshot has to be worth."""

    least_tokens: int = 256
    least_chance: float = 0.05  #: of coming back
    explored_part: float = 0.05  #: of the unlikely ones are written all the same, to learn
    pressure_bytes: int = 1 << 30  #: with less than this beyond the floor, only the valuable
    valuable_chance: float = 0.5  #: of coming back
    least_outcomes: float = 0.0  #: before so many are known, no chance is too small
    holds_explicit: bool = False  #: budget and pressure are for what somebody asks for as well


@dataclass(frozen=True)
class Admitted:
    """The snapshot may be written."""

    is_explored: bool = False  #: it is hardly expected back, and written to learn


@dataclass(frozen=True)
class Refused:
    """The snapshot is not written."""

    cause: Cause


def admit(facts: WriteFacts, limits: WriteLimits) -> Admitted | Refused:
    """Return whether a snapshot is to be written.

    Sweeps suspend by themselves, so all limits are for them. Who asks for a suspend may know that
    the session comes back, or need its bytes for another end: that is refused only if the limits
    say so, and never for its own small worth.
    """
    if facts.is_explicit and not limits.holds_explicit:
        return Admitted()
    if facts.budget_left_bytes <= 0.0:
        return Refused(Cause(Reason.WRITE_BUDGET_SPENT))
    too_short = None if facts.is_explicit else _too_short(facts, limits)
    useless = too_short or _too_unlikely(facts, limits)
    if useless is not None:
        return Refused(useless)
    if facts.is_explicit or not _is_below(facts, limits.least_chance, limits):
        return Admitted()
    if _is_explored(facts, limits.explored_part):
        return Admitted(is_explored=True)
    return Refused(Cause(Reason.NO_EXPECTED_RETURN, _chance(facts)))


def _too_short(facts: WriteFacts, limits: WriteLimits) -> Cause | None:
    if facts.tokens < limits.least_tokens:
        return Cause(Reason.TOO_FEW_TOKENS, f"{facts.tokens} tokens of {limits.least_tokens}")
    if facts.saved_s is not None and facts.saved_s <= 0.0:
        return Cause(Reason.TOO_FEW_TOKENS, f"{facts.tokens} tokens load no faster")
    return None


def _too_unlikely(facts: WriteFacts, limits: WriteLimits) -> Cause | None:
    """Return why the little space that is free is kept for others."""
    pressed = facts.spare_bytes - facts.new_bytes < limits.pressure_bytes
    if pressed and _is_below(facts, limits.valuable_chance, limits):
        return Cause(Reason.PRESSURE, _chance(facts))
    return None


def _is_below(facts: WriteFacts, chance: float, limits: WriteLimits) -> bool:
    return facts.return_chance < chance and facts.outcomes >= limits.least_outcomes


def _chance(facts: WriteFacts) -> str:
    return f"{facts.return_chance:.0%} come back"


def _is_explored(facts: WriteFacts, part: float) -> bool:
    """Whether the session is among those written to learn today: the same answer all day."""
    day = math.floor(facts.now_unix_s / _DAY_S)
    named = f"{facts.tenant}/{facts.session}/{day}".encode()
    number = int.from_bytes(hashlib.sha256(named).digest()[:8])
    return number < part * 2**64


def _amount(value: JsonValue) -> float | None:
    # An integer of hundreds of digits is JSON, too, and no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e18:
        return None
    return float(value)
