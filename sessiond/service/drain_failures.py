"""Why a drain could not store sessions, and when it tries them again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from sessiond.domain.reasons import EXPLANATIONS

if TYPE_CHECKING:
    from sessiond.domain.drains import AtRisk
    from sessiond.service.watch import Key

#: Between two tries of what may be repeated; doubles up to the second.
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a session was not stored, or not all of it, as of its last turn."""

    code: str
    detail: str
    used_unix_s: float
    wait_s: float  #: until it is tried again; infinite: never
    due_s: float  #: on the monotonic clock

    def is_about(self, one: AtRisk) -> bool:
        """Whether the session had no turn since."""
        return self.used_unix_s == one.used_unix_s


class Failures:
    """The newest of each session; a turn since makes it void."""

    def __init__(self) -> None:
        self._known: dict[Key, Failure] = {}

    def note(self, one: AtRisk, code: str, detail: str, *, retryable: bool) -> None:
        """Note that a try failed."""
        earlier, wait_s = self._known.get(one.key), math.inf
        if retryable:
            repeated = earlier is not None and earlier.is_about(one) and earlier.code == code
            wait_s = 2 * earlier.wait_s if earlier and repeated else _FIRST_RETRY_S
            wait_s = min(wait_s, _LAST_RETRY_S)
        due_s = monotonic() + wait_s
        self._known[one.key] = Failure(code, detail, one.used_unix_s, wait_s, due_s)

    def of(self, one: AtRisk) -> Failure | None:
        """Return why it was not stored, if it was tried since its last turn, or never will be."""
        if one.cause is not None:
            reason, never_s = one.cause.reason, math.inf
            sentence = EXPLANATIONS[reason].sentence
            return Failure(reason.value, sentence, one.used_unix_s, never_s, never_s)
        failure = self._known.get(one.key)
        return failure if failure and failure.is_about(one) else None

    def is_due(self, one: AtRisk) -> bool:
        """Whether it may be tried now."""
        failure = self.of(one)
        return not one.busy and (failure is None or failure.due_s <= monotonic())

    def is_waiting(self, one: AtRisk) -> bool:
        """Whether it will be tried later."""
        failure = self.of(one)
        return one.busy or (failure is not None and failure.wait_s < math.inf)
