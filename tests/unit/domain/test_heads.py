from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessiond.domain.heads import (
    Branch,
    Head,
    LastTurn,
    TurnSplit,
    add_branch,
    begin_turn,
    end_turn,
    pass_turn,
)
from sessiond.domain.lines import MAX_BRANCHES
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import common_prefix_tokens, token_ids

EMPTY = Head("t", "s", "e", sequence=0, turns_in_flight=0, updated_unix_s=0.0, branches=())


def branch(*tokens: int, at: float = 1.0, adapter: str = "") -> Branch:
    return Branch(token_ids(tokens), adapter, "salt", at, TurnSplit())


def after(*branches: Branch) -> Head:
    head = EMPTY
    for one in branches:
        head = end_turn(begin_turn(head, one.updated_unix_s), one, one.updated_unix_s)
    return head


def texts(head: Head) -> set[tuple[int, ...]]:
    return {tuple(one.tokens) for one in head.branches}


def test_a_turn_in_flight_is_counted() -> None:
    assert begin_turn(begin_turn(EMPTY, 1.0), 2.0).turns_in_flight == 2


def test_the_end_of_a_turn_is_counted() -> None:
    assert end_turn(begin_turn(EMPTY, 1.0), None, 2.0).turns_in_flight == 0


def test_an_end_without_a_begin_is_no_debt() -> None:
    assert begin_turn(end_turn(EMPTY, None, 1.0), 2.0).turns_in_flight == 1


def test_a_branch_beside_turns_ends_none_of_them() -> None:
    head = add_branch(begin_turn(EMPTY, 1.0), branch(1, 2), 2.0)
    assert head.turns_in_flight == 1
    assert texts(head) == {(1, 2)}


def test_the_newest_turn_is_kept_beside_its_branch() -> None:
    turn = LastTurn(2.0, TurnSplit(10, vram_tokens=8), diverged_at_token=8)
    head = end_turn(EMPTY, branch(1, 2), 2.0, turn)
    assert head.last_turn == turn
    # Of one whose end was not told, nothing is known.
    assert end_turn(begin_turn(head, 3.0), None, 3.0).last_turn == turn


IMAGE = LastTurn(5.0, TurnSplit(10), causes=(Cause(Reason.NOT_TEXT),))


def test_a_turn_that_is_not_kept_hides_the_branches_until_the_next_one_that_is() -> None:
    head = pass_turn(after(branch(1, 2, 3)), IMAGE)
    assert (head.unkept, head.last_turn, head.updated_unix_s) == ("not_text", IMAGE, 5.0)
    assert texts(head) == {(1, 2, 3)}
    assert end_turn(begin_turn(head, 6.0), None, 6.0).unkept == "not_text"
    assert end_turn(begin_turn(head, 6.0), branch(1, 2, 3, 4, at=6.0), 6.0).unkept == ""


def test_a_side_call_does_not_make_an_older_branch_the_whole() -> None:
    head = pass_turn(after(branch(*range(100))), IMAGE)
    titled = end_turn(begin_turn(head, 6.0), branch(7, 8, 9, at=6.0), 6.0)
    assert (titled.unkept, len(titled.branches)) == ("not_text", 2)
    assert add_branch(head, branch(*range(90), at=6.0), 6.0).unkept == "not_text"


def test_every_change_has_a_higher_sequence() -> None:
    heads = [EMPTY, begin_turn(EMPTY, 1.0)]
    heads.append(end_turn(heads[-1], branch(1, 2), 2.0))
    heads.append(add_branch(heads[-1], branch(3, 4), 3.0))
    assert [head.sequence for head in heads] == [0, 1, 2, 3]


def test_a_turn_that_left_nothing_changes_no_branch() -> None:
    head = after(branch(1, 2))
    assert end_turn(begin_turn(head, 2.0), None, 3.0).branches == head.branches


def test_without_branches_there_is_no_main_one() -> None:
    assert EMPTY.main is None


def test_the_last_sampled_token_has_no_kv() -> None:
    assert branch(1, 2, 3).kv_tokens == 2


def test_no_tokens_have_no_kv() -> None:
    assert branch().kv_tokens == 0


def test_cached_tokens_are_those_not_computed() -> None:
    assert TurnSplit(100, vram_tokens=1, ram_tokens=20, disk_tokens=30).cached_tokens == 51


class HeadMachine(RuleBasedStateMachine):
    """A conversation with side calls beside a list of everything that was ever said."""

    def __init__(self) -> None:
        super().__init__()
        self.head = EMPTY
        self.now_s = 0.0
        self.in_flight = 0

    def tick(self) -> float:
        self.now_s += 1
        return self.now_s

    @rule()
    def begin(self) -> None:
        self.head = begin_turn(self.head, self.tick())
        self.in_flight += 1

    @rule(text=st.lists(st.integers(0, 3), min_size=2, max_size=30))
    def say_something_new(self, text: list[int]) -> None:
        self.end(branch(*text, at=self.tick()))

    @precondition(lambda self: self.head.branches)
    @rule(data=st.data(), reply=st.lists(st.integers(0, 3), min_size=1, max_size=10))
    def continue_a_branch(self, data: st.DataObject, reply: list[int]) -> None:
        old = data.draw(st.sampled_from(self.head.branches))
        new = replace(old, tokens=old.tokens + token_ids(reply), updated_unix_s=self.tick())
        self.end(new)
        assert tuple(old.tokens) not in texts(self.head)

    @rule()
    def end_with_nothing(self) -> None:
        before = self.head.branches
        self.head = end_turn(self.head, None, self.tick())
        self.in_flight = max(0, self.in_flight - 1)
        assert self.head.branches == before

    def end(self, new: Branch) -> None:
        before = self.head.branches
        self.head = end_turn(self.head, new, self.tick())
        self.in_flight = max(0, self.in_flight - 1)
        assert tuple(new.tokens) in texts(self.head)
        longest = max((old.kv_tokens for old in before), default=0)
        assert max(one.kv_tokens for one in self.head.branches) >= longest
        for old in before:
            if old not in self.head.branches:
                self.must_have_been_replaced_or_given_up(old, new, len(before))

    def must_have_been_replaced_or_given_up(self, old: Branch, new: Branch, branches: int) -> None:
        continued = 2 * common_prefix_tokens(old.tokens, new.tokens) >= len(old.tokens)
        oldest = all(one.updated_unix_s > old.updated_unix_s or one.kv_tokens >= old.kv_tokens
                     for one in self.head.branches[1:])  # fmt: skip
        assert continued or (branches == MAX_BRANCHES and oldest)

    @invariant()
    def holds(self) -> None:
        assert len(self.head.branches) <= MAX_BRANCHES
        times = [one.updated_unix_s for one in self.head.branches[1:]]
        assert times == sorted(times, reverse=True)
        assert self.head.turns_in_flight == self.in_flight


TestHeadMachine = HeadMachine.TestCase
