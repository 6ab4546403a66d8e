"""The heads that this engine knows, in memory: the authority while the engine lives."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from sessiond.domain.heads import (
    Branch,
    Head,
    LastTurn,
    add_branch,
    begin_turn,
    end_turn,
    pass_turn,
)

SessionKey = tuple[str, str]


class HeadBook:
    """Heads by (tenant, session), the least recently used forgotten first.

    :param limit_tokens: tokens of all branches together; beyond it their KV is long evicted
    """

    def __init__(self, engine_id: str, limit_tokens: int) -> None:
        self._engine_id = engine_id
        self._limit_tokens = limit_tokens
        self._heads: OrderedDict[SessionKey, Head] = OrderedDict()
        self._tokens = 0

    def get(self, key: SessionKey) -> Head | None:
        """Return the session's head, if it is known."""
        return self._heads.get(key)

    def begin_turn(self, key: SessionKey, now_unix_s: float) -> Head:
        """Note that a turn has started."""
        return self._put(key, begin_turn(self._known(key), now_unix_s))

    def end_turn(
        self,
        key: SessionKey,
        branch: Branch | None,
        now_unix_s: float,
        turn: LastTurn | None = None,
        *,
        is_known: bool = False,
    ) -> Head:
        """Note that a turn has ended, what it left, and how it went if that is known.

        :param is_known: it continues the snapshot that its ticket names
        """
        head = end_turn(self._known(key), branch, now_unix_s, turn, is_known=is_known)
        return self._put(key, head)

    def pass_turn(self, key: SessionKey, turn: LastTurn) -> Head:
        """Note a turn that is served and not kept."""
        return self._put(key, pass_turn(self._known(key), turn))

    def add_branch(self, key: SessionKey, branch: Branch, now_unix_s: float) -> Head:
        """Note what a request left that is no turn."""
        return self._put(key, add_branch(self._known(key), branch, now_unix_s))

    def all(self) -> list[Head]:
        """Return all heads, the least recently used first."""
        return list(self._heads.values())

    def forget_all(self, now_unix_s: float) -> list[Head]:
        """Drop all branches (their KV is gone) and return the heads as they are now."""
        for key in list(self._heads):
            head = self._heads[key]
            gone = replace(head, sequence=head.sequence + 1, updated_unix_s=now_unix_s, branches=())
            self._put(key, gone)
        return self.all()

    def _known(self, key: SessionKey) -> Head:
        known = self._heads.get(key)
        return known or Head(
            tenant=key[0],
            session=key[1],
            engine_id=self._engine_id,
            sequence=0,
            turns_in_flight=0,
            updated_unix_s=0.0,
            branches=(),
        )

    def _put(self, key: SessionKey, head: Head) -> Head:
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
