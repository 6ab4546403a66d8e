from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.headbook import HeadBook, IdHolder
from sessiond.domain.heads import Branch, LastTurn, TurnSplit
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import token_ids

A, B, C = (IdHolder(("t", name)) for name in "abc")


def branch(tokens: int, first: int = 0) -> Branch:
    return Branch(token_ids([first] * tokens), "", "salt", 2.0, TurnSplit())


def turn(book: HeadBook, holder: IdHolder, tokens: int) -> None:
    book.begin_turn(holder, 1.0)
    book.end_turn(holder, branch(tokens), 2.0)


def known(book: HeadBook) -> list[str]:
    return [head.session for head in book.all()]


def test_an_unknown_session_has_no_head() -> None:
    assert HeadBook("e", 100).get(A) is None


def test_a_head_carries_its_names() -> None:
    head = HeadBook("e", 100).begin_turn(A, 5.0)
    assert head is not None
    assert (head.tenant, head.session, head.engine_id) == ("t", "a", "e")
    assert (head.sequence, head.turns_in_flight, head.updated_unix_s) == (1, 1, 5.0)


def test_sessions_of_two_tenants_are_two_sessions() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 5)
    assert book.get(IdHolder(("u", "a"))) is None


def test_the_end_of_a_turn_is_remembered() -> None:
    book = HeadBook("e", 100)
    turn(book, A, 5)
    head = book.get(A)
    assert head is not None
    assert (head.turns_in_flight, len(head.branches)) == (0, 1)


def test_a_branch_beside_turns_ends_none() -> None:
    book = HeadBook("e", 100)
    book.begin_turn(A, 1.0)
    head = book.add_branch(A, branch(5), 2.0)
    assert head is not None
    assert head.turns_in_flight == 1


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
def test_it_holds_no_more_than_its_limit(turns: list[tuple[IdHolder, int, bool]]) -> None:
    book = HeadBook("e", 100)
    for first, (holder, tokens, stays) in enumerate(turns):
        book.begin_turn(holder, 1.0)
        if not stays:
            book.end_turn(holder, branch(tokens, first), 2.0)
        assert book.get(holder) is not None
    # What a turn in flight holds, and what was used last, counts but is kept.
    free = [head for head in book.all()[:-1] if head.turns_in_flight == 0]
    total = sum(len(one.tokens) for head in book.all() for one in head.branches)
    assert total <= 100 or not free


OLD, NEW = IdHolder(A.key, 1_000_000), IdHolder(A.key, 2_000_000)


def test_a_new_session_of_a_used_id_begins_with_nothing() -> None:
    book = HeadBook("e", 100)
    turn(book, OLD, 40)
    book.pass_turn(OLD, LastTurn(2.0, None, causes=(Cause(Reason.NOT_TEXT),)))
    book.begin_turn(OLD, 3.0)
    head = book.begin_turn(NEW, 4.0)
    assert head is not None
    assert (head.branches, head.turns_in_flight, head.unkept, head.last_turn) == ((), 1, "", None)
    assert head.sequence == 5  # the file of the old one's is replaced
    assert head.session_created_unix_us == NEW.created_unix_us


def test_what_ends_of_a_deleted_session_is_no_part_of_the_new_one() -> None:
    book = HeadBook("e", 100)
    book.begin_turn(OLD, 1.0)
    turn(book, NEW, 40)
    before = book.get(NEW)
    late = LastTurn(9.0, None, causes=(Cause(Reason.NOT_TEXT),))
    assert book.end_turn(OLD, branch(90), 9.0) is None
    assert book.add_branch(OLD, branch(90), 9.0) is None
    assert book.pass_turn(OLD, late) is None
    assert book.begin_turn(OLD, 9.0) is None
    assert book.get(OLD) is None
    assert book.get(NEW) is before is book.newest(A.key)


def test_a_deleted_sessions_turn_does_not_come_back_when_the_new_one_is_forgotten() -> None:
    book = HeadBook("e", 100)
    book.begin_turn(OLD, 1.0)
    turn(book, NEW, 40)
    turn(book, B, 90)
    assert known(book) == ["b"]
    assert book.end_turn(OLD, branch(30), 9.0) is None
    assert known(book) == ["b"]


@pytest.mark.parametrize(("created_unix_us", "kept"), [(2_000_000, [41, 40]), (2_500_000, [41])])
def test_tickets_of_an_earlier_version_do_not_say_whose_they_are(
    created_unix_us: int, kept: list[int]
) -> None:
    book = HeadBook("e", 100)
    book.end_turn(A, None, 0.0)
    turn(book, A, 40)  # ended at 2.0
    new = IdHolder(A.key, created_unix_us)
    book.begin_turn(new, 3.0)
    book.end_turn(new, branch(41, 7), 3.0)
    book.begin_turn(A, 3.0)
    head = book.end_turn(A, None, 3.0)
    assert head is not None
    assert sorted((len(one.tokens) for one in head.branches), reverse=True) == kept
    assert head.session_created_unix_us == created_unix_us


@given(calls=st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.booleans()), max_size=30))
def test_two_sessions_of_one_id_are_never_one(calls: list[tuple[IdHolder, bool]]) -> None:
    book, alone = HeadBook("e", 10_000), HeadBook("e", 10_000)
    in_flight = {OLD: 0, NEW: 0}
    for holder, begins in calls:
        if not begins and not in_flight[holder]:
            continue
        in_flight[holder] += 1 if begins else -1
        for one in (book, alone) if holder is NEW else (book,):
            if begins:
                one.begin_turn(holder, 1.0)
            else:
                one.end_turn(holder, branch(5, holder.created_unix_us), 2.0)
    mixed, expected = book.get(NEW), alone.get(NEW)
    if expected is not None:
        assert mixed is not None
        assert replace(mixed, sequence=0) == replace(expected, sequence=0)
