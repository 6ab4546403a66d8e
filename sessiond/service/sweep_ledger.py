"""What sweeps remember of each other: what failed, what is done, what is still owed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.service.judge import is_due, is_due_in_window

if TYPE_CHECKING:
    from collections.abc import Collection

    from sessiond.domain.session import OnEvicted, Presence
    from sessiond.service.catalogue import View
    from sessiond.service.context import Context
    from sessiond.service.watch import Key

#: A suspend that fails again and again is tried so often at least.
_LONGEST_RETRY_S = 3600.0


@dataclass(frozen=True)
class _Retry:
    """When a session whose suspend failed, or left something out, is swept again."""

    at_unix_s: float
    wait_s: float
    idle_since_unix_s: float  #: since then; another turn begins anew
    reason: str = ""  #: code of what it was refused for, if it was
    on_evicted: OnEvicted | None = None  #: the session's choice

    @property
    def basis(self) -> tuple[float, OnEvicted | None]:
        """What a change of which makes the session due again."""
        return self.idle_since_unix_s, self.on_evicted

    @property
    def known_unix_s(self) -> float:
        """Until when another failure counts as the same trouble."""
        return self.at_unix_s + self.wait_s


class Ledger:
    """Tells which sessions are due. All of it is forgotten when a session's next turn comes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._retries: dict[Key, _Retry] = {}
        #: The last token of what was suspended: retention must not make us store it again.
        self._done_unix_s: dict[Key, float] = {}
        #: The last token of what a window wanted suspended, until that is done.
        self._owed_unix_s: dict[Key, float] = {}
        #: The last token of what was refused, and the code of the reason.
        self._refused: dict[Key, tuple[float, str]] = {}
        #: The last token of what seemed to come from the future, and when it was seen first.
        self._ahead_unix_s: dict[Key, tuple[float, float]] = {}

    def prune(self, watched: Collection[Key], now_unix_s: float) -> None:
        """Forget what concerns sessions that are no longer watched."""
        self._retries = {
            key: retry
            for key, retry in self._retries.items()
            if retry.known_unix_s > now_unix_s and key in watched
        }
        books = (self._done_unix_s, self._owed_unix_s, self._refused, self._ahead_unix_s)
        for remembered in books:
            for key in remembered.keys() - watched:
                del remembered[key]

    def is_due(self, view: View, now_unix_s: float) -> bool:
        """Whether a sweep should suspend the session now."""
        if not view.presence or not self._is_open(view, view.presence, now_unix_s):
            return False
        presence = self._clocked(view, view.presence, now_unix_s)
        if self.is_owed(view):
            return is_due_in_window(view.session, presence, 0.0, now_unix_s)
        return is_due(view.session, presence, self._context.limits.idle_timeout_s, now_unix_s)

    def owe(self, view: View, idle_s: float, now_unix_s: float) -> None:
        """Note that a window wants the session suspended, if it does.

        It stays due until that is done: a suspend that fails, or is put off, is tried again.
        """
        if not view.presence:
            return
        presence = self._clocked(view, view.presence, now_unix_s)
        if is_due_in_window(view.session, presence, idle_s, now_unix_s):
            self._owed_unix_s[_key_of(view)] = view.presence.idle_since_unix_s

    def is_owed(self, view: View) -> bool:
        """Whether a window wants the session suspended."""
        owed_unix_s = self._owed_unix_s.get(_key_of(view))
        return view.presence is not None and owed_unix_s == view.presence.idle_since_unix_s

    def done(self, view: View) -> None:
        """Note that the session was suspended."""
        key = _key_of(view)
        self._retries.pop(key, None)
        self._owed_unix_s.pop(key, None)
        if view.presence:
            self._done_unix_s[key] = view.presence.idle_since_unix_s

    def is_news(self, view: View, reason: str) -> bool:
        """Note that the session is refused; return whether it was not yet, for this reason."""
        was_refused = self.was_refused(view, reason)
        self._refused[_key_of(view)] = _idle_since_unix_s(view), reason
        return not was_refused

    def was_refused(self, view: View, reason: str) -> bool:
        """Whether the session was refused last for this reason, since its last turn."""
        return self._refused.get(_key_of(view)) == (_idle_since_unix_s(view), reason)

    def leave(self, view: View) -> None:
        """Leave the session alone until its next turn, or its owner has it recomputed."""
        self._wait(view, math.inf)

    def postpone(self, view: View, reason: str = "") -> None:
        """Leave the session alone for a while: twice as long as the last time.

        :param reason: code of what it was refused for, if it was
        """
        key = _key_of(view)
        earlier = self._retries.get(key)
        wait_s = self._context.limits.sweep_retry_s
        if earlier and earlier.idle_since_unix_s == _idle_since_unix_s(view):
            # Each attempt leaves an operation and an event, and may measure the store.
            wait_s = min(2 * earlier.wait_s, max(wait_s, _LONGEST_RETRY_S))
        self._wait(view, wait_s, reason)

    def is_waiting_for(self, reason: str) -> bool:
        """Whether a session waits that was refused for this reason."""
        return any(retry.reason == reason for retry in self._retries.values())

    def has_ended(self, reason: str, now_unix_s: float) -> None:
        """Let those wait no longer that were refused for a reason that holds no more.

        Should they be refused again, they wait as long as if they had not been let go.
        """
        for key, retry in self._retries.items():
            if retry.reason == reason:
                at_unix_s = min(retry.at_unix_s, now_unix_s)
                self._retries[key] = replace(retry, at_unix_s=at_unix_s)

    def _wait(self, view: View, wait_s: float, reason: str = "") -> None:
        until_unix_s = self._context.now() + wait_s
        self._retries[_key_of(view)] = _Retry(
            until_unix_s, wait_s, _idle_since_unix_s(view), reason, view.session.on_evicted
        )

    def _is_open(self, view: View, presence: Presence, now_unix_s: float) -> bool:
        """Whether nothing of what was done before forbids another attempt."""
        key = _key_of(view)
        retry = self._retries.get(key)
        basis = presence.idle_since_unix_s, view.session.on_evicted
        if retry and retry.basis == basis and retry.at_unix_s > now_unix_s:
            return False
        # Two idle sessions that do not fit a quota together would evict each other for ever.
        done = self._done_unix_s.get(key) == presence.idle_since_unix_s
        return not (view.session.lost_reason and done)

    def _clocked(self, view: View, presence: Presence, now_unix_s: float) -> Presence:
        """Return *presence* with a last token that is not in the future.

        That seems to be so where the clock was put back. Then the session counts as idle since
        it was seen so first; else it would stay in VRAM until the clock has caught up.
        """
        key, token_unix_s = _key_of(view), presence.idle_since_unix_s
        known = self._ahead_unix_s.get(key)
        if known and known[0] == token_unix_s:
            first_unix_s = min(known[1], now_unix_s)
        elif token_unix_s > now_unix_s:
            first_unix_s = now_unix_s
        else:
            return presence
        self._ahead_unix_s[key] = token_unix_s, first_unix_s
        return replace(presence, idle_since_unix_s=min(token_unix_s, first_unix_s))


def _idle_since_unix_s(view: View) -> float:
    return view.presence.idle_since_unix_s if view.presence else 0.0


def _key_of(view: View) -> Key:
    return view.session.tenant, view.session.session_id
