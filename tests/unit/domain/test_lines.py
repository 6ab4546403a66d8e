"""Which branch of a session is its conversation, by stories of real agents."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.heads import Branch, Head, TurnSplit, add_branch, end_turn, may_be_main
from sessiond.domain.lines import MAX_BRANCHES
from sessiond.domain.tokens import TokenIds, token_ids

SYSTEM, OTHER_SYSTEM, SHORT_SYSTEM = 200, 200, 30  # tokens; the last one is no beginning
MINUTE_S = 60.0


def words(seed: int, length: int) -> TokenIds[int]:
    """Return text that no other seed has."""
    return token_ids(range(seed * 100_000, seed * 100_000 + length))


AGENT, HELPER, TERSE = words(1, SYSTEM), words(2, OTHER_SYSTEM), words(3, SHORT_SYSTEM)


@dataclass
class Story:
    """The turns of one session in one engine, one every ten seconds."""

    head: Head = field(default_factory=lambda: Head("t", "s", "e", 0, 0, 0.0, ()))
    now_s: float = 1000.0
    said: int = 10

    def new(self, length: int) -> TokenIds[int]:
        """Return text that was never there."""
        self.said += 1
        return words(self.said, length)

    def turn(
        self,
        prompt: TokenIds[int],
        reply: int = 20,
        *,
        adapter: str = "",
        is_known: bool = False,
        after_s: float = 10.0,
    ) -> TokenIds[int]:
        """Take a turn; return its prompt and its reply."""
        self.now_s += after_s
        tokens = prompt + self.new(reply)
        split = TurnSplit(len(prompt))
        branch = Branch(tokens, adapter, "salt", self.now_s, split)
        self.head = end_turn(self.head, branch, self.now_s, is_known=is_known)
        return tokens

    def turns(
        self, context: TokenIds[int], count: int, grows: int = 30, after_s: float = 10.0
    ) -> TokenIds[int]:
        """Let a line go on for so many turns; return its end."""
        for _ in range(count):
            context = self.turn(context + self.new(grows), after_s=after_s)
        return context

    def resume(self, tokens: TokenIds[int]) -> None:
        """Bring a snapshot back."""
        self.now_s += 10.0
        branch = Branch(tokens, "", "salt", self.now_s, TurnSplit(len(tokens)))
        self.head = add_branch(self.head, branch, self.now_s)

    @property
    def main(self) -> TokenIds[int]:
        assert self.head.main is not None
        return self.head.main.tokens

    @property
    def texts(self) -> set[bytes]:
        return {one.tokens.tobytes() for one in self.head.branches}


@pytest.fixture
def story() -> Story:
    return Story()


# One line


def test_a_continuing_turn_takes_the_place_of_its_branch(story: Story) -> None:
    end = story.turns(AGENT, 5)
    assert story.texts == {end.tobytes()}


def test_a_reply_may_be_tokenised_anew(story: Story) -> None:
    end = story.turn(AGENT, reply=60)
    again = story.turn(end[:-50] + story.new(80))
    assert story.texts == {again.tobytes()}


def test_reasoning_that_is_left_out_may_have_been_longer_than_all_the_rest(story: Story) -> None:
    prompt = AGENT
    for _ in range(3):
        end = story.turn(prompt, reply=1000)
        # Of the cue for the reply the last tokens differ, too.
        prompt = prompt[:-3] + story.new(50)
        assert story.texts == {end.tobytes()}
    assert story.main == end


def test_the_same_prompt_once_more_is_no_next_turn(story: Story) -> None:
    """Several replies to one prompt (n > 1): the next turn shows which one counted."""
    context = story.turns(AGENT, 3) + story.new(30)
    replies = [story.turn(context, reply) for reply in (60, 40, 50)]
    assert story.texts == {one.tobytes() for one in replies}
    assert story.main == replies[0]
    goes_on = story.turn(replies[1] + story.new(40))
    assert story.main == goes_on


def test_a_second_try_of_a_turn_is_no_second_turn(story: Story) -> None:
    """Its reply may well be the same."""
    end = story.turns(AGENT, 3)
    call = HELPER + story.new(2 * len(end))
    for _ in range(3):
        story.said = 50
        again = story.turn(call)
        assert story.texts == {end.tobytes(), again.tobytes()}
    assert story.main == end


def test_another_adapter_is_another_branch(story: Story) -> None:
    end = story.turns(AGENT, 2)
    story.turn(end + story.new(30), adapter="poet")
    assert (len(story.head.branches), story.main) == (2, end)
    goes_on = story.turn(end + story.new(60), adapter="poet")
    story.turn(goes_on + story.new(30), adapter="poet")
    assert story.head.main is not None
    assert story.head.main.adapter_digest == "poet"  # the session has changed to it for good


# Side calls


def test_a_title_is_a_side_call(story: Story) -> None:
    end = story.turn(AGENT + story.new(100))
    story.turn(story.new(60), reply=5)
    assert story.main == end


@pytest.mark.parametrize("times", [0.5, 1, 3, 10])
def test_one_call_is_a_side_call_however_large(story: Story, times: float) -> None:
    end = story.turns(AGENT, 3)
    story.turn(HELPER + story.new(int(times * len(end))))
    assert story.main == end


def test_parallel_calls_are_side_calls(story: Story) -> None:
    end = story.turns(AGENT, 3)
    for _ in range(MAX_BRANCHES + 2):
        story.turn(HELPER + story.new(len(end)))
    assert story.main == end
    goes_on = story.turn(end + story.new(200))
    assert story.main == goes_on


@pytest.mark.parametrize("conversation_turns", [1, 4])
def test_a_sub_agent_of_many_turns_is_a_side_call(story: Story, conversation_turns: int) -> None:
    end = story.turns(AGENT, conversation_turns, grows=400)
    sub_agent = HELPER
    for _ in range(6):
        sub_agent = story.turns(sub_agent, 1)
        assert story.main == end
    goes_on = story.turn(end + story.new(40))
    assert story.main == goes_on


def test_two_sub_agents_at_once_are_side_calls(story: Story) -> None:
    end = story.turns(AGENT, 2, grows=600)
    first, second = HELPER, words(4, 300)
    for _ in range(4):
        first, second = story.turns(first, 1), story.turns(second, 1)
    assert story.main == end


@pytest.mark.parametrize("beginning", [HELPER, AGENT])
def test_after_a_sub_agent_the_conversation_is_what_it_was(
    story: Story, beginning: TokenIds[int]
) -> None:
    """Larger ones, and those with the same system prompt, lead until it goes on."""
    end = story.turns(AGENT, 2, grows=200)
    sub_agent = story.turns(beginning + story.new(300), 5, grows=300)
    assert story.main == sub_agent
    goes_on = story.turn(end + story.new(40))
    assert story.main == goes_on
    story.turn(goes_on + story.new(40))
    assert len(story.main) > len(goes_on)


def test_a_router_before_each_message_is_a_side_call(story: Story) -> None:
    router, conversation = story.turn(HELPER + story.new(20), 5), AGENT + story.new(400)
    conversation = story.turn(conversation)
    assert story.main == conversation
    for _ in range(3):
        router = story.turn(router + story.new(20), 5)
        conversation = story.turn(conversation + story.new(100), 100)
        assert story.main == conversation


# The conversation becomes another one


def test_a_call_before_the_conversation_gives_way_to_it(story: Story) -> None:
    story.turn(HELPER + story.new(50))
    conversation = story.turn(AGENT + story.new(500))
    assert story.main == conversation


def test_a_compacted_history_is_the_conversation_from_its_second_turn(story: Story) -> None:
    end = story.turns(AGENT, 6, grows=400)
    # The call that makes the summary is the last one of the old line.
    end = story.turn(end + story.new(20), reply=150)
    compacted = story.turn(AGENT + story.new(150))
    assert story.main == end
    compacted = story.turn(compacted + story.new(30))
    assert story.main == compacted
    story.turn(story.new(60), reply=5)  # a title
    assert story.main == compacted
    assert story.turns(compacted, 3) == story.main


def test_so_is_a_beginning_from_scratch(story: Story) -> None:
    story.turns(AGENT, 6, grows=400)
    assert story.turns(AGENT, 2) == story.main


@pytest.mark.parametrize(("minutes", "leads"), [(25, False), (35, True)])
def test_one_that_begins_otherwise_is_the_conversation_after_a_while(
    story: Story, minutes: int, *, leads: bool
) -> None:
    end = story.turns(TERSE, 6, grows=400)
    compacted = story.turn(TERSE + story.new(100))
    compacted = story.turns(compacted, 5, after_s=minutes * MINUTE_S / 4)
    assert story.main == (compacted if leads else end)


def test_one_that_begins_otherwise_is_the_conversation_when_it_is_as_long(story: Story) -> None:
    end = story.turns(TERSE, 3, grows=200)
    compacted = TERSE + story.new(100)
    while len(compacted) < len(end):
        assert story.main == end
        compacted = story.turns(compacted, 1)
    assert story.main == compacted


# Snapshots


def test_what_is_resumed_is_the_conversation(story: Story) -> None:
    sub_agent = story.turns(HELPER, 3, grows=500)
    assert story.main == sub_agent
    snapshot = AGENT + story.new(300)
    story.resume(snapshot)
    assert story.main == snapshot
    assert story.turns(snapshot, 1) == story.main


def test_so_is_the_turn_that_loads_it(story: Story) -> None:
    story.turns(HELPER, 3, grows=500)
    conversation = story.turn(AGENT + story.new(300), is_known=True)
    assert story.main == conversation


def test_a_part_of_the_main_branch_does_not_replace_it(story: Story) -> None:
    end = story.turns(AGENT, 4)
    story.resume(end[: len(end) // 2])  # its last token has no KV
    assert story.main == end


def test_a_part_of_the_reply_does_not_replace_it_either(story: Story) -> None:
    end = story.turn(AGENT, reply=1000)
    story.resume(end[:640])
    assert story.main == end


def test_however_often_it_is_resumed_other_lines_stay(story: Story) -> None:
    snapshot = AGENT + story.new(300)
    story.resume(snapshot)
    call = story.turn(HELPER + story.new(20))
    for _ in range(2 * MAX_BRANCHES):
        story.resume(snapshot)
    assert story.main == snapshot
    assert story.texts == {snapshot.tobytes(), call.tobytes()}


def test_a_sub_agent_that_was_stored_gives_way_to_the_conversation_too(story: Story) -> None:
    end = story.turns(AGENT, 2)
    sub_agent = story.turns(HELPER + story.new(300), 3, grows=300)
    assert story.main == sub_agent  # which a sweep stores now
    story.turn(sub_agent + story.new(30), is_known=True)
    goes_on = story.turn(end + story.new(40))
    assert story.main == goes_on


# Turns that are not kept


@pytest.mark.parametrize(("tokens", "may"), [(40, False), (60, True), (1000, True)])
def test_a_turn_that_is_not_kept_is_taken_for_one_of_the_conversation(
    story: Story, tokens: int, *, may: bool
) -> None:
    story.turns(words(5, 40), 1, grows=40)  # and 20 of the reply
    nothing = TurnSplit(tokens)
    assert may_be_main(story.head, Branch(story.new(tokens), "", "salt", 0.0, nothing)) is may
    assert may_be_main(Story().head, Branch(story.new(tokens), "", "salt", 0.0, nothing))


# Whatever comes between


calls = st.one_of(
    st.tuples(st.just("title"), st.integers(2, 100)),
    st.tuples(st.just("parallel"), st.integers(2, 5000)),
    st.tuples(st.just("sub-agent"), st.integers(2, 6)),
)


@given(st.lists(st.lists(calls, max_size=4), min_size=1, max_size=5))
def test_no_side_call_is_stored_in_place_of_the_conversation(
    pauses: list[list[tuple[str, int]]],
) -> None:
    story = Story()
    conversation = story.turns(AGENT, 2, grows=1000)
    for pause in pauses:
        for kind, size in pause:
            if kind == "sub-agent":
                story.turns(HELPER + story.new(size), size)
            else:
                story.turn(story.new(size), reply=5)
            assert story.main == conversation
        conversation = story.turn(conversation + story.new(30))
        assert story.main == conversation


@given(st.data())
def test_whatever_came_between_the_conversation_leads_when_it_goes_on(data: st.DataObject) -> None:
    story = Story()
    conversation = story.turns(AGENT, 2, grows=400)
    for _ in range(data.draw(st.integers(1, 4))):
        began_with = data.draw(st.sampled_from([AGENT, HELPER, TERSE]))
        turns, grows = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2000))
        story.turns(began_with + story.new(200), turns, grows)
        conversation = story.turn(conversation + story.new(30))
        assert story.main == conversation
