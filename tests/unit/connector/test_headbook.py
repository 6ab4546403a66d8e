from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.headbook import HeadBook, SessionKey
from sessiond.domain.heads import Branch, TurnSplit
from sessiond.domain.tokens import token_ids

A, B, C = ("t", "a"), ("t", "b"), ("t", "c")


def branch(tokens: int, first: int = 0) -> Branch:
    return Branch(token_ids([first] * tokens), "", "salt", 1.0, TurnSplit())


def turn(book: HeadBook, key: SessionKey, tokens: int) -> None:
    book.begin_turn(key, 1.0)
    book.end_turn(key, branch(tokens), 2.0)


def known(book: HeadBook) -> list[str]:
    return [head.session for head in book.all()]


def test_an_unknown_session_has_no_head() -> None:
    assert HeadBook("e", 100).get(A) is None


def test_a_head_carries_its_names() -> None:
    head = HeadBook("e", 100).begin_turn(A, 5.0)
    assert (head.tenant, head.session, head.engine_id) == ("t", "a", "e")
    assert (head.sequence, head.turns_in_flight, head.updated_unix_s) == (1, 1, 5.0)


def test_sessions_of_two_tenants_are_two_sessions() -> None:
    book = HeadBook("e", 100)
    turn(book, ("t", "a"), 5)
    assert book.get(("u", "a")) is None


def test_the_end_of_a_turn_is_remembered() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 5)
    head = book.get(A)
    assert head is not None
    assert (head.turns_in_flight, len(head.branches)) == (0, 1)


def test_a_branch_beside_turns_ends_none() -> None:
    book = HeadBook("e", 100)
    book.begin_turn(A, 1.0)
    assert book.add_branch(A, branch(5), 2.0).turns_in_flight == 1


def test_the_least_recently_used_is_forgotten() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 40)
    turn(book, B, 40)
    turn(book, A, 41)
    turn(book, C, 40)
    assert known(book) == ["a", "c"]


def test_a_session_with_a_turn_in_flight_is_not_forgotten() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 60)
    book.begin_turn(A, 3.0)
    turn(book, B, 30)
    turn(book, C, 30)
    assert known(book) == ["a", "c"]


def test_the_session_just_used_is_not_forgotten() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 90)
    book.begin_turn(A, 3.0)
    turn(book, B, 30)
    assert known(book) == ["a", "b"]


def test_one_session_larger_than_the_limit_is_kept() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 500)
    assert known(book) == ["a"]


def test_forgetting_all_drops_branches_and_keeps_turns() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 5)
    turn(book, B, 5)
    book.begin_turn(B, 3.0)
    heads = {head.session: head for head in book.forget_all(9.0)}
    assert [head.branches for head in heads.values()] == [(), ()]
    assert [heads[name].turns_in_flight for name in "ab"] == [0, 1]
    assert [heads[name].sequence for name in "ab"] == [3, 4]
    assert {head.updated_unix_s for head in heads.values()} == {9.0}


def test_forgetting_all_needs_no_reader() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 5)
    book.forget_all(9.0)
    head = book.get(A)
    assert head is not None
    assert head.branches == ()


def test_what_was_forgotten_makes_room() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 90)
    book.forget_all(9.0)
    turn(book, B, 90)
    assert known(book) == ["a", "b"]


@given(
    turns=st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.integers(2, 60), st.booleans()), max_size=40
    )
)
def test_it_holds_no_more_than_its_limit(turns: list[tuple[SessionKey, int, bool]]) -> None:
    book = HeadBook("e", 100)
    for first, (key, tokens, stays) in enumerate(turns):
        book.begin_turn(key, 1.0)
        if not stays:
            book.end_turn(key, branch(tokens, first), 2.0)
        assert book.get(key) is not None
    # What a turn in flight holds, and what was used last, counts but is kept.
    free = [head for head in book.all()[:-1] if head.turns_in_flight == 0]
    total = sum(len(one.tokens) for head in book.all() for one in head.branches)
    assert total <= 100 or not free
