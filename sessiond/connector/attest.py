"""Turning the snapshot tier on again after a reset, on an operator's word.

A reset of the engine's caches (sleep and pause bring one) may come with other weights, so the
tier is off afterwards (design §3, rule 13). An operator who knows that the weights are still
those of the files says so through sessiond. The connector checks what it can: that a reset was
the reason, that it is the one that the operator knows of, that it left no KV of before in the
engine, and that no file was changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sessiond.connector.requests import TicketedRequest
from sessiond.domain.reasons import Cause, Reason

logger = logging.getLogger("vllm.sessiond.attest")

#: Why the tier is off after a reset; the only reason that an operator can take back.
RESET = Cause(Reason.TIER_OFF, "the engine's caches were reset")
#: Something of ours failed during a reset: nobody knows what is left of before.
RESET_UNCLEAR = Cause(Reason.TIER_OFF, "a reset of the engine's caches went wrong in sessiond")
RESET_AGAIN = Cause(Reason.TIER_OFF, "the engine's caches were reset again meanwhile")
KV_LEFT = Cause(Reason.TIER_OFF, "KV of before the reset is still in the engine; reset it again")

_SHOWN_FILES = 3


@dataclass(frozen=True)
class TierState:
    """What everybody is told of the tier."""

    off: str  #: why it is off; empty while it is on
    reason: str  #: the code of that
    attestable: bool  #: whether an operator may turn it on again
    resets: int  #: how often the engine's caches were reset


class FileLook:
    """Looks for changed files in a thread of its own: a hung disk must hold up nothing."""

    def __init__(self, changed_files: Callable[[], Sequence[str]]) -> None:
        self.changed: Sequence[str] | None = None  #: their names; ``None`` until it is known
        self._changed_files = changed_files
        threading.Thread(target=self._run, name="sessiond-attest", daemon=True).start()

    def _run(self) -> None:
        try:
            self.changed = tuple(self._changed_files())
        except Exception:
            logger.exception("sessiond: the model's files cannot be looked at")
            self.changed = ("the model's files cannot be looked at",)


class Attestor:
    """Judges what operators say; runs on the scheduler's thread and never blocks.

    :ivar changed_files: returns the names of the files that are not those that were digested
    :ivar resets: how often the engine's caches were reset
    """

    def __init__(self) -> None:
        self.changed_files: Callable[[], Sequence[str]] = tuple
        self.resets = 0
        self._emptied = False
        self._looks: dict[str, FileLook] = {}

    def note_reset(self, *, emptied: bool) -> None:
        """Take note of a reset; *emptied*: it left no KV in VRAM."""
        self.resets += 1
        self._emptied = emptied
        self._looks.clear()  # a file may have changed since it was looked at

    def state(self, off: Cause | None) -> TierState:
        """Return what to tell of a tier that is off for this reason, or on."""
        why = "" if off is None else off.detail or off.reason.value
        reason = "" if off is None else off.reason.value
        return TierState(why, reason, attestable=off == RESET, resets=self.resets)

    def judge(self, request: TicketedRequest, off: Cause | None) -> list[Cause] | None:
        """Return why the tier must not be turned on; nothing if it may, ``None`` if that is
        not known yet.

        :param off: why it is off now
        """
        if off is None:
            return []
        if off != RESET:
            return [off]
        if request.ticket.generation != self.resets:
            return [RESET_AGAIN]
        if not self._emptied:
            return [KV_LEFT]
        return self._judged_by_files(request.ticket.operation_id)

    def _judged_by_files(self, operation_id: str) -> list[Cause] | None:
        if operation_id not in self._looks:
            self._looks[operation_id] = FileLook(self.changed_files)
        changed = self._looks[operation_id].changed
        if changed is None:
            return None
        del self._looks[operation_id]
        if not changed:
            return []
        names = ", ".join(changed[:_SHOWN_FILES])
        return [Cause(Reason.TIER_OFF, f"changed since the engine started: {names}")]
