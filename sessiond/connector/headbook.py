"""The heads that this engine knows, in memory: the authority while the engine lives."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

from sessiond.domain.heads import (
    Branch,
    Head,
    LastTurn,
    add_branch,
    begin_turn,
    end_turn,
    head_for,
    pass_turn,
)

SessionKey = tuple[str, str]


class IdHolder(NamedTuple):
    """The session that has, or had, an id since it was created."""

    key: SessionKey
    created_unix_us: int = 0  #: 0: not known


class HeadBook:
    """Heads by (tenant, session), the least recently used forgotten first.

    What is told of a session that was deleted, while its id is a newer one's, changes nothing; then
    ``None`` is returned.

    :param limit_tokens: tokens of all branches together; beyond it their KV is long evicted
    """

    def __init__(self, engine_id: str, limit_tokens: int) -> None:
        self._engine_id = engine_id
        self._limit_tokens = limit_tokens
        self._heads: OrderedDict[SessionKey, Head] = OrderedDict()
        self._tokens = 0

    def is_of_deleted(self, holder: IdHolder) -> bool:
        """Whether a newer session is known that has the id by now."""
        return self._known(holder) is None

    def newest(self, key: SessionKey) -> Head | None:
        """Return the head of the newest session of that id, if one is known."""
        return self._heads.get(key)

    def get(self, holder: IdHolder) -> Head | None:
        """Return the session's head, if it is known."""
        head = self._known(holder)
        return head if head is not None and head.sequence else None

    def begin_turn(self, holder: IdHolder, now_unix_s: float) -> Head | None:
        """Note that a turn has started."""
        head = self._known(holder)
        return self._put(head and begin_turn(head, now_unix_s))

    def end_turn(
        self,
        holder: IdHolder,
        branch: Branch | None,
        now_unix_s: float,
        turn: LastTurn | None = None,
        *,
        is_known: bool = False,
    ) -> Head | None:
        """Note that a turn has ended, what it left, and how it went if that is known.

        :param is_known: it continues the snapshot that its ticket names
        """
        # One whose begin is not known has lost its head to a newer session, which was forgotten.
        head = self._known(holder) if holder.key in self._heads else None
        return self._put(head and end_turn(head, branch, now_unix_s, turn, is_known=is_known))

    def pass_turn(self, holder: IdHolder, turn: LastTurn) -> Head | None:
        """Note a turn that is served and not kept."""
        head = self._known(holder)
        return self._put(head and pass_turn(head, turn))

    def add_branch(self, holder: IdHolder, branch: Branch, now_unix_s: float) -> Head | None:
        """Note what a request left that is no turn."""
        head = self._known(holder)
        return self._put(head and add_branch(head, branch, now_unix_s))

    def all(self) -> list[Head]:
        """Return all heads, the least recently used first."""
        return list(self._heads.values())

    def forget_all(self, now_unix_s: float) -> list[Head]:
        """Drop all branches (their KV is gone) and return the heads as they are now."""
        for head in self.all():
            self._put(
                replace(head, sequence=head.sequence + 1, updated_unix_s=now_unix_s, branches=())
            )
        return self.all()

    def _known(self, holder: IdHolder) -> Head | None:
        tenant, session = holder.key
        known = self._heads.get(holder.key) or Head(
            tenant=tenant,
            session=session,
            engine_id=self._engine_id,
            sequence=0,
            turns_in_flight=0,
            updated_unix_s=0.0,
            branches=(),
        )
        return head_for(known, holder.created_unix_us)

    def _put(self, head: Head | None) -> Head | None:
        if head is None:
            return None
        key = head.tenant, head.session
        old = self._heads.pop(key, None)
        self._tokens += _size(head) - (_size(old) if old else 0)
        self._heads[key] = head
        self._forget_oldest()
        return head

    def _forget_oldest(self) -> None:
        for key, head in list(self._heads.items())[:-1]:  # never the one just used
            if self._tokens <= self._limit_tokens:
                return
            if head.turns_in_flight == 0:
                self._tokens -= _size(self._heads.pop(key))


def _size(head: Head) -> int:
    return sum(len(branch.tokens) for branch in head.branches)
