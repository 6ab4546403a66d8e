from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.continuation import (
    TEXT_PART_TYPES,
    Chat,
    Continuation,
    continue_head,
    difference,
)
from sessiond.domain.reasons import Reason
from sessiond.domain.tokens import common_prefix_tokens, token_ids

END = 0
PLENTY = 1000
words = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def continued(head: list[int], rendered: list[int], limit: int = PLENTY) -> Continuation:
    return continue_head(token_ids(head), token_ids(rendered), limit)


def test_a_reply_that_was_rendered_otherwise_keeps_its_tokens() -> None:
    found = continued([7, END, 1, 1, 1, END], [7, END, 3, END, 8, 9])
    assert found.prompt == token_ids([7, END, 1, 1, 1, END, 8, 9])
    assert (found.head_tokens, found.rendered_tokens, found.common_tokens) == (6, 6, 2)
    assert (found.gained_tokens, found.cause) == (4, None)


def test_messages_that_become_the_heads_tokens_need_no_other_prompt() -> None:
    found = continued([7, END, 1, END], [7, END, 1, END, 8])
    assert (found.prompt, found.cause, found.gained_tokens) == (None, None, 0)


def test_a_message_fewer_is_no_continuation() -> None:
    found = continued([7, END, 1, END, 8, END], [7, END, 1, END, 9])
    assert found.prompt is None
    assert found.cause is not None
    assert found.cause.reason is Reason.NOT_FAITHFUL


@pytest.mark.parametrize(("limit", "fits"), [(8, True), (7, False)])
def test_a_prompt_that_leaves_no_room_for_a_reply_is_not_sent(limit: int, *, fits: bool) -> None:
    found = continued([7, END, 1, 1, 1, END], [7, END, 3, END, 8, 9], limit)
    assert (found.prompt is not None, found.cause is None) == (fits, fits)


@given(st.lists(words, min_size=1, max_size=4), st.lists(words, min_size=1, max_size=4), words)
def test_a_prompt_has_the_head_and_the_rest_of_what_was_rendered(
    said: list[list[int]], rendered_said: list[list[int]], new: list[int]
) -> None:
    head = [token for one in said for token in (*one, END)]
    rendered = [token for one in rendered_said for token in (*one, END)] + new
    found = continued(head, rendered)
    assert found.common_tokens == common_prefix_tokens(head, rendered)
    if found.prompt is None:
        assert found.cause is not None or rendered[: len(head)] == head
        return
    own, rest = list(found.prompt[: len(head)]), list(found.prompt[len(head) :])
    place = len(rendered) - len(rest)
    assert own == head
    assert rendered[place:] == rest
    assert rendered[:place].count(END) == head.count(END)
    assert rendered[place - 1] == END


def test_equal_texts_do_not_differ() -> None:
    assert difference("one and the same", "one and the same") is None


def test_a_difference_is_shown_with_its_place() -> None:
    cause = difference("It is Monday today, and it rains.", "It is Tuesday today, and it rains.")
    assert cause is not None
    assert (cause.reason, cause.detail) == (
        Reason.NOT_FAITHFUL,
        "the text differs from character 6 on",
    )
    assert "Monday" in str(cause.stored)
    assert "Tuesday" in str(cause.live)


def test_a_text_that_goes_on_differs() -> None:
    cause = difference("one", "one more")
    assert cause is not None
    assert cause.detail == "the text differs from character 3 on"


def test_bytes_that_are_no_character_prove_nothing() -> None:
    assert difference("a\ufffdb", "a\ufffdb") is not None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("words", None),
        (None, None),  # a message that only calls tools
        (["words"], None),
        ([{"text": "words"}], None),
        *(([{"type": kind, kind: "words"}], None) for kind in sorted(TEXT_PART_TYPES)),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}], "not_text"),
        ([{"type": "input_audio"}], "not_text"),
        ([{"type": "input_image"}], "not_text"),
        ([{"type": "video_embeds"}], "not_text"),
        ([{"type": "prompt_embeds"}], "not_text"),
        ([{"image_url": "data:"}], "not_text"),
        ([{"type": "text", "text": "a", "image_url": "data:"}], "not_text"),
        ([{"type": "of_tomorrow"}], "not_faithful"),
        ([{"type": ["text"]}], "not_faithful"),
        ([{}], "not_faithful"),
        ([7], "not_faithful"),
        ([{"type": "of_tomorrow"}, {"type": "image_url"}], "not_text"),
    ],
)
def test_what_is_text(content: object, reason: str | None) -> None:
    system = {"role": "system", "content": "words"}
    cause = Chat([system, {"role": "user", "content": content}]).unfit_cause
    assert (cause.reason.value if cause else None) == reason
    assert reason != "not_faithful" or (cause and cause.detail)
