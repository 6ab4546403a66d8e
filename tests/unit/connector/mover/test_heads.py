"""What the connector tells its mover of a head is what the mover writes."""

from __future__ import annotations

import socket
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.mover.heads import head_of, message_of
from sessiond.connector.mover.protocol import WriteHead, receive, send
from sessiond.domain.heads import Branch, Head, LastTurn, TurnSplit
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.timing import TurnTiming
from sessiond.domain.tokens import token_ids

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
COUNTS = st.integers(0, 2**40)
TIMES = st.floats(0, 2e9)
SPLITS = st.builds(TurnSplit, COUNTS, COUNTS, COUNTS, COUNTS)
CAUSES = st.builds(Cause, st.sampled_from(Reason), TEXTS)
TURNS = st.builds(
    LastTurn,
    TIMES,
    st.none() | SPLITS,
    COUNTS,
    COUNTS,
    st.none() | COUNTS,
    st.lists(CAUSES, max_size=2).map(tuple),
    TEXTS,
    st.none() | st.builds(TurnTiming, TIMES, read_bytes=COUNTS, prefill_to_token=COUNTS),
)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=9).map(token_ids)
BRANCHES = st.builds(Branch, TOKENS, TEXTS, TEXTS, TIMES, SPLITS, TEXTS)
HEADS = st.builds(
    Head,
    TEXTS,
    TEXTS,
    st.just("e"),
    COUNTS,
    COUNTS,
    TIMES,
    st.lists(BRANCHES, max_size=4).map(tuple),
    st.none() | TURNS,
    TEXTS,
    COUNTS,
)


@given(HEADS)
def test_a_head_arrives_as_it_was_sent(head: Head) -> None:
    ours, movers = socket.socketpair()
    with ours, movers:
        send(ours, message_of(head, 7))
        message = receive(movers)
    assert isinstance(message, WriteHead)
    assert message.head_id == 7
    assert head_of(message, "e") == replace(head, engine_id="e")
