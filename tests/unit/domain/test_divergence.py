from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.divergence import Meeting, closest, meet
from sessiond.domain.tokens import token_ids

tokens = st.lists(st.integers(0, 3), max_size=12).map(token_ids)


@pytest.mark.parametrize(
    ("context", "prompt", "at"),
    [
        ([1, 2, 3], [1, 2, 3, 4], None),  # the next turn
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 2], None),  # a retry of an earlier one
        ([1, 2, 3], [1, 9, 3, 4], 1),
        ([1, 2, 3], [9], 0),
        ([], [1], None),
    ],
)
def test_where_a_prompt_leaves_a_context(
    context: list[int], prompt: list[int], at: int | None
) -> None:
    met = meet(token_ids(prompt), token_ids(context))
    assert met.diverged_at_token == at
    assert (met.tokens_total, met.prompt_tokens) == (len(context), len(prompt))


@given(tokens, tokens)
def test_the_first_token_that_differs_is_named(left: list[int], right: list[int]) -> None:
    at = meet(left, right).diverged_at_token  # type: ignore[arg-type]  # made by token_ids
    if at is None:
        shorter = min(len(left), len(right))
        assert left[:shorter] == right[:shorter]
    else:
        assert left[:at] == right[:at]
        assert left[at] != right[at]


def test_the_closest_context_has_the_most_in_common_and_then_the_most_tokens() -> None:
    long, longer, other = Meeting(8, 20, 5), Meeting(9, 20, 5), Meeting(100, 20, 4)
    assert closest([long, longer, other]) == longer
    assert closest([]) is None
