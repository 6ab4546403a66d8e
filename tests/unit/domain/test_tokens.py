from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.tokens import (
    chain_digests,
    common_prefix_tokens,
    from_bytes,
    head_digest,
    to_bytes,
    token_ids,
    whole_chunk_tokens,
)

TOKEN_LISTS = st.lists(st.integers(0, 2**32 - 1), max_size=50)
FEW_KINDS = st.lists(st.integers(0, 2), max_size=40)


def naive_common(left: Sequence[int], right: Sequence[int]) -> int:
    common = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        common += 1
    return common


@given(left=FEW_KINDS, right=FEW_KINDS, shared=FEW_KINDS)
def test_common_prefix(left: list[int], right: list[int], shared: list[int]) -> None:
    one, other = token_ids(shared + left), token_ids(shared + right)
    assert common_prefix_tokens(one, other) == naive_common(one, other)


@given(left=FEW_KINDS, right=FEW_KINDS)
def test_common_prefix_of_an_array_and_a_list(left: list[int], right: list[int]) -> None:
    assert common_prefix_tokens(token_ids(left), right) == naive_common(left, right)


@given(left=FEW_KINDS, right=FEW_KINDS)
def test_common_prefix_has_no_sides(left: list[int], right: list[int]) -> None:
    assert common_prefix_tokens(left, right) == common_prefix_tokens(right, left)


@given(tokens=TOKEN_LISTS)
def test_bytes_round_trip(tokens: list[int]) -> None:
    assert from_bytes(to_bytes(token_ids(tokens))) == token_ids(tokens)


@given(tokens=TOKEN_LISTS)
def test_bytes_are_little_endian(tokens: list[int]) -> None:
    assert to_bytes(token_ids(tokens)) == struct.pack(f"<{len(tokens)}I", *tokens)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 4095])
def test_bytes_of_a_broken_length_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        from_bytes(bytes(length))


@pytest.mark.parametrize("value", [-1, 2**32])
def test_values_that_fit_no_32_bits_are_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        token_ids([value])


@given(tokens=TOKEN_LISTS, chunk_tokens=st.integers(1, 20))
def test_chain_digests(tokens: list[int], chunk_tokens: int) -> None:
    expected = [
        hashlib.sha256(to_bytes(token_ids(tokens[:end]))).digest()
        for end in range(chunk_tokens, len(tokens) + 1, chunk_tokens)
    ]
    assert chain_digests(token_ids(tokens), chunk_tokens) == expected


@given(tokens=TOKEN_LISTS, change=st.data())
def test_an_early_token_changes_every_later_digest(
    tokens: list[int], change: st.DataObject
) -> None:
    tokens = [*tokens, 1]
    place = change.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:place], tokens[place] ^ 1, *tokens[place + 1 :]]
    before, after = chain_digests(token_ids(tokens), 4), chain_digests(token_ids(changed), 4)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == [chunk < place // 4 for chunk in range(len(before))]


@given(tokens=st.integers(0, 10**6), chunk_tokens=st.integers(1, 512))
def test_whole_chunks(tokens: int, chunk_tokens: int) -> None:
    whole = whole_chunk_tokens(tokens, chunk_tokens)
    assert whole % chunk_tokens == 0
    assert 0 <= tokens - whole < chunk_tokens


def test_a_heads_digest_is_that_of_its_bytes() -> None:
    tokens = token_ids([1, 2, 3])
    assert head_digest(tokens) == hashlib.sha256(to_bytes(tokens)).hexdigest()
