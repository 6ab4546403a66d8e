"""Which line of a session is its conversation, and which are side calls: a pure rule.

A line is what continues itself, turn after turn; a branch is its end. Nobody tells us which line
is the conversation, and the next turn may be of any. So the main branch changes only on evidence
that it is not the conversation, and until then a suspend stores it as it was: a line that is taken
too late has to be computed again once, one that is given up too early is lost.

A turn continues a branch if it begins with its prompt, or with half of it. Its branch is the main
one if it continues the main one or the snapshot that its ticket names, or there is no other. Else
it becomes the main one

- with the first turn of its line, if the main line had no second one either and has at most half
  of its KV: a router's or a title's call may come before the conversation;
- with a later turn of its line, if one of these holds:

  - All of the main line came after the line's last turn: it was a sub-agent of this
    conversation, which goes on.
  - Both begin alike, as what is called a system prompt does: the history was compacted, or the
    agent began anew. Sub-agents have another, or else they count as the conversation until that
    goes on.
  - It has at least as much KV as the main branch: it is dearer to compute, whatever it is.
  - It has gone on for half an hour, and the main line had no turn: no side call lasts so long.

A snapshot is of the main branch of its moment, so by the same rule the main branch of an engine
that has only just met the session does not outdo it, nor what another engine has. Nor does one
that had no turn since and differs: the session has gone on elsewhere. But where the engine still
has the line of the snapshot, it has decided already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.domain.tokens import common_prefix_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessiond.domain.heads import Branch

#: A session keeps this many branches (side calls such as titles make short-lived ones).
MAX_BRANCHES = 4
#: Of a line that began before the engine knew it, as all that only a snapshot had.
BEFORE_ALL = 0.0
#: So many tokens in common are more than what chat templates write before every system prompt.
_SAME_BEGINNING_TOKENS = 128
#: At the end of a prompt, the cue for a reply is rendered otherwise when the reply is there.
_CUE_TOKENS = 16
_LONGEST_SIDE_CALL_S = 1800.0


@dataclass(frozen=True)
class Placed:
    """A session's branches after a turn."""

    branches: tuple[Branch, ...]  #: the main one first, then the newest first
    leads: bool  #: whether the main one is the turn's


def place(branches: tuple[Branch, ...], new: Branch, *, is_known: bool = False) -> Placed:
    """Put *new* in the place of the branches that it continues, or beside the others.

    :param is_known: it continues a snapshot of the session, or is the beginning of one
    """
    continued = [branch for branch in branches if continues(new, branch)]
    repeated = [branch for branch in branches if _repeats(new, branch)]
    replaced = [*continued, *repeated]
    kept = [branch for branch in branches if all(branch is not one for one in replaced)]
    # What only repeats a line's first turn is no second one.
    begun = continued + [one for one in repeated if not _had_one_turn(one)]
    unmet_unix_s = BEFORE_ALL if is_known else new.updated_unix_s
    began_unix_s = min((one.began_unix_s for one in begun), default=unmet_unix_s)
    new = replace(new, began_unix_s=began_unix_s)
    is_main = len(branches) == 0 or any(one is branches[0] for one in replaced)
    leads = is_main or _leads(new, branches[0], continued, is_known=is_known)
    main = new if leads else branches[0]
    others = [branch for branch in (new, *kept) if branch is not main]
    others.sort(key=lambda b: b.updated_unix_s, reverse=True)
    if len(others) >= MAX_BRANCHES:
        # Neither the new branch is given up nor the longest: it is the dearest to recompute.
        longest = max((main, *others), key=lambda b: b.kv_tokens)
        others.remove(next(b for b in reversed(others) if b is not longest and b is not new))
    return Placed((main, *others), leads)


def may_lead(branches: tuple[Branch, ...], new: Branch) -> bool:
    """Whether a turn that is not kept, and would have left *new*, may be of the conversation.

    No second turn will show it. So it is taken for one unless it is clearly too short, since a
    suspend must not store what was before it as if it were the whole.
    """
    if any(continues(new, branch) for branch in branches) or not branches:
        return True
    return not _is_part(new, branches[0]) and 2 * new.kv_tokens >= branches[0].kv_tokens


def continues(new: Branch, old: Branch) -> bool:
    """Whether *new* is the next turn of *old*.

    A reply re-tokenises differently, and reasoning is stripped, so the common prefix may end
    inside old's last turn, and there may be less after it than before.
    """
    if new.adapter_digest != old.adapter_digest:
        return False
    common = common_prefix_tokens(new.tokens, old.tokens)
    prompt, new_prompt = old.split.prompt_tokens, new.split.prompt_tokens
    if new_prompt == prompt <= common and prompt:
        return False  # the same prompt once more
    if len(new.tokens) >= len(old.tokens) and 2 * common >= len(old.tokens):
        return True
    goes_on = new_prompt > prompt > 0 and not _is_part(new, old)  # as the resume of a part is
    return goes_on and common >= max(prompt - _CUE_TOKENS, prompt / 2)


def outdoes(main: Branch, stored: Branch) -> bool:
    """Whether the *main* branch of a head may take the place of the newest snapshot.

    :param stored: the snapshot's, which was updated when that was made
    """
    if continues(main, stored) or _is_part(main, stored):
        return True
    if main.updated_unix_s <= stored.updated_unix_s:
        return False
    known = main.began_unix_s <= stored.updated_unix_s
    return known or (not _had_one_turn(main) and _has_replaced(main, stored, main.updated_unix_s))


def makes_needless(main: Branch, other: Branch) -> bool:
    """Whether *other*, the main branch of another engine, is not needed where *main* is."""
    has_less = _is_part(main, other) and not _is_part(other, main)
    return outdoes(main, other) and not has_less


def _leads(new: Branch, main: Branch, continued: Sequence[Branch], *, is_known: bool) -> bool:
    if _is_part(new, main):
        return False  # such as after a resume: main has more
    if is_known:
        return True
    if not continued:
        return _had_one_turn(main) and new.kv_tokens >= 2 * main.kv_tokens
    paused_unix_s = max(one.updated_unix_s for one in continued)
    return main.began_unix_s > paused_unix_s or _has_replaced(new, main, paused_unix_s)


def _has_replaced(new: Branch, main: Branch, last_unix_s: float) -> bool:
    """Whether *new* is the conversation from now on; its line lasted until then at least."""
    lasts_s = last_unix_s - max(new.began_unix_s, main.updated_unix_s)
    return (
        new.kv_tokens >= main.kv_tokens
        or common_prefix_tokens(new.tokens, main.tokens) >= _SAME_BEGINNING_TOKENS
        or lasts_s >= _LONGEST_SIDE_CALL_S
    )


def _had_one_turn(branch: Branch) -> bool:
    return branch.began_unix_s == branch.updated_unix_s


def _is_part(new: Branch, main: Branch) -> bool:
    """Whether all KV of *new* is main's."""
    alike = new.adapter_digest == main.adapter_digest
    return alike and common_prefix_tokens(new.tokens, main.tokens) >= new.kv_tokens


def _repeats(new: Branch, old: Branch) -> bool:
    """Whether both are the same, as after a second resume, or a second try of a turn."""
    return new.adapter_digest == old.adapter_digest and new.tokens == old.tokens
