"""How suspends and resumes ended, kept for the requests that wait for it, and our answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import ANSWER_PARAM, Ticket

#: Settlements that nobody asked for are forgotten after this long.
_LIFE_S = 600.0


@dataclass(frozen=True)
class Settlement:
    """How one suspend or resume has ended."""

    facts: Mapping[str, Any]
    causes: tuple[Cause, ...]
    settled_s: float  #: monotonic


class Settlements:
    """Settlements by operation id; the first one of an operation stands."""

    def __init__(self) -> None:
        self._known: dict[str, Settlement] = {}

    def __contains__(self, operation_id: str) -> bool:
        return operation_id in self._known

    def settle(self, operation_id: str, facts: Mapping[str, Any], causes: Iterable[Cause]) -> None:
        """Note how an operation ended."""
        now_s = time.monotonic()
        self._forget(now_s - _LIFE_S)
        self._known.setdefault(operation_id, Settlement(facts, tuple(causes), now_s))

    def settle_lost(self, operation_id: str, causes: Iterable[Cause]) -> None:
        """Note that a suspend left nothing."""
        self.settle(operation_id, {"committed": False, "available_tokens": 0}, causes)

    def take(self, operation_id: str) -> Settlement | None:
        """Return an operation's settlement and forget it."""
        return self._known.pop(operation_id, None)

    def answer(self, engine_id: str, ticket: Ticket) -> dict[str, Any]:
        """Return the answer to a request that waited for its operation, and forget how it ended."""
        settlement = self.take(ticket.operation_id)
        if settlement is None:
            nothing = {"committed": False, "available_tokens": 0, "loadable_tokens": 0}
            late = [Cause(Reason.DEADLINE, "nothing settled")]
            return answer(engine_id, ticket.op, nothing, late, ok=False)
        return answer(engine_id, ticket.op, settlement.facts, settlement.causes)

    def _forget(self, before_s: float) -> None:
        for operation_id, settlement in list(self._known.items()):
            if settlement.settled_s < before_s:
                del self._known[operation_id]


def answer(
    engine_id: str, op: str, facts: Mapping[str, Any], causes: Iterable[Cause], *, ok: bool = True
) -> dict[str, Any]:
    """Return our part of a request's ``kv_transfer_params``."""
    return {
        ANSWER_PARAM: {
            "engine_id": engine_id,
            "op": op,
            "ok": ok,
            "causes": [cause.as_json() for cause in without_repeats(causes)],
            **facts,
        }
    }


def without_repeats(causes: Iterable[Cause]) -> list[Cause]:
    """Return each cause once, in their order."""
    # Each job and each admission adds its own. Not a set: the values in a cause may be lists.
    unique: list[Cause] = []
    for cause in causes:
        if cause not in unique:
            unique.append(cause)
    return unique
