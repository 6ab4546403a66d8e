"""Which of a session's heads, one of each engine, has its conversation: a pure rule.

Heads are hints, and the newest wins; but not one that has nothing over one that has KV, nor one of
a side call over one of the conversation, by the rule of :mod:`sessiond.domain.lines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiond.domain.heads import since
from sessiond.domain.lines import makes_needless, outdoes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sessiond.domain.heads import Head
    from sessiond.domain.session import Session


def is_gone(head: Head) -> bool:
    """Whether the engine has forgotten the session's KV, as after a reset of its caches."""
    return not (head.branches or head.turns_in_flight or head.unkept)


def of_session(session: Session, heads: Iterable[Head]) -> list[Head]:
    """Return *heads* without what their engines had of a deleted session of the same id."""
    return [ours for head in heads if (ours := _ours(session, head)) is not None]


def choose_head(heads: Iterable[Head], off: Collection[str] = ()) -> Head | None:
    """Return the head that has the conversation; ``None`` without any.

    :param off: engines that keep nothing now: what they have gives way to any turn elsewhere
    """
    newest_first = sorted(heads, key=_newness, reverse=True)
    found = newest_first[0] if newest_first else None
    for older in newest_first[1:]:
        if found is not None and older.engine_id not in off and _is_aside(found, older):
            found = older
    return found


def is_needed(head: Head, there: Head) -> bool:
    """Whether more of the session is lost with *head* than a side call, or what was given up.

    :param there: that of another engine, which has the conversation or may have it soon
    """
    ours, theirs = head.main, there.main
    if ours is None or theirs is None:
        return ours is not None
    is_aside = ours.updated_unix_s > theirs.updated_unix_s and not outdoes(ours, theirs)
    return not is_aside and not makes_needless(theirs, ours)


def _ours(session: Session, head: Head) -> Head | None:
    if head.session_created_unix_us:
        return head if head.session_created_unix_us >= session.created_unix_us else None
    # Of an earlier version's tickets only times tell, and a turn may end after its session.
    created_unix_s = session.created_unix_s
    return since(created_unix_s, head) if head.updated_unix_s >= created_unix_s else None


def _newness(head: Head) -> tuple[bool, float, int]:
    # A turn that left nothing changes a head, too, but not what it has.
    told = head.turns_in_flight or head.unkept or head.main is None
    at_unix_s = head.updated_unix_s if told or head.main is None else head.main.updated_unix_s
    return not is_gone(head), at_unix_s, head.sequence


def _is_aside(newer: Head, older: Head) -> bool:
    """Whether the newer head is of side calls of the conversation that the older one has."""
    if newer.turns_in_flight or newer.unkept or newer.main is None or older.main is None:
        return False
    return not outdoes(newer.main, older.main)
