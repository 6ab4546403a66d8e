from __future__ import annotations

from dataclasses import replace

import pytest

from sessiond.domain.session import Presence, SessionState, derive_state
from sessiond.testing.values import a_session, a_summary

HERE = Presence(
    "e1",
    0,
    head_tokens=170,
    whole_chunk_tokens=160,
    head_digest="",
    idle_since_unix_s=0,
    stored_tokens=160,
)
OTHER = replace(HERE, stored_tokens=0)  # as many tokens, but not the snapshot's
BUSY = replace(HERE, turns_in_flight=1)
GROWN = replace(HERE, head_tokens=200, whole_chunk_tokens=192)
COVERING = a_summary(tokens_restorable=160)


@pytest.mark.parametrize(
    ("fields", "presence", "state"),
    [
        ({}, None, SessionState.COLD),
        ({"snapshot": COVERING}, None, SessionState.SUSPENDED),
        ({}, HERE, SessionState.ACTIVE),
        ({}, BUSY, SessionState.RUNNING),
        ({"snapshot": COVERING}, HERE, SessionState.SUSPENDED),
        ({"snapshot": COVERING}, BUSY, SessionState.RUNNING),
        ({"snapshot": COVERING}, GROWN, SessionState.ACTIVE),
        ({"snapshot": COVERING}, OTHER, SessionState.ACTIVE),
        ({"snapshot": COVERING, "resumed_on": "e1"}, HERE, SessionState.ACTIVE),
        ({"snapshot": COVERING, "resumed_on": "e2"}, HERE, SessionState.SUSPENDED),
        ({"snapshot": COVERING, "resumed_on": "e1"}, None, SessionState.SUSPENDED),
        ({"deleted": True}, None, SessionState.DELETED),
        ({"deleted": True, "snapshot": COVERING}, HERE, SessionState.DELETED),
        ({"deleted": True}, BUSY, SessionState.DELETED),
    ],
)
def test_the_state_is_derived(
    fields: dict[str, object], presence: Presence | None, state: SessionState
) -> None:
    assert derive_state(a_session("s-1", **fields), presence) is state


def test_every_state_is_in_the_table_above() -> None:
    marks = getattr(test_the_state_is_derived, "pytestmark")  # noqa: B009 - added by pytest
    assert {case[-1] for case in marks[0].args[1]} == set(SessionState)
