from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.limits import Limits


@given(chunk_tokens=st.integers(1, 512), chunk=st.integers(0, 10**6))
def test_a_chunk_is_named_by_the_token_at_which_it_ends(chunk_tokens: int, chunk: int) -> None:
    limits = Limits(chunk_tokens, 1, 1.0, 1.0, 1.0)
    end_token = (chunk + 1) * chunk_tokens
    assert limits.chunk_at(end_token) == chunk
    assert limits.chunks_in(end_token) == chunk + 1
    assert limits.chunks_in(end_token - 1) == chunk
