"""What a turn's answer and its session's head tell of where the prompt left what was known."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector.mover import protocol
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.domain.tokens import TokenIds, common_prefix_tokens, token_ids
from sessiond.testing.fake_mover import FakeClock, FakeMovers
from sessiond.testing.fake_scheduler import FakeScheduler, tokens_of

some_tokens = st.lists(st.integers(0, 2), min_size=2, max_size=20).map(token_ids)


def told(answer: dict[str, Any]) -> tuple[int, int, int | None]:
    """Return tokens_total, tokens_restorable and diverged_at_token."""
    return answer["tokens_total"], answer["tokens_restorable"], answer["diverged_at_token"]


def causes(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cause["reason"], cause.get("detail", "")) for cause in answer["causes"]]


def met(vllm: FakeScheduler, *tokens: int, causes: tuple[Cause, ...] = ()) -> None:
    """Let the mover answer: tokens of the snapshot, those that it restores, those in common."""
    asked = vllm.mover.told(protocol.OpenLoad)[-1]
    found = [cause.as_json() for cause in causes]
    vllm.mover.answer(protocol.LoadOpened(asked.plan_id, [], found, *tokens))


def changed(tokens: TokenIds[int], at: int) -> TokenIds[int]:
    return tokens[:at] + token_ids([99]) + tokens[at + 1 :]


def test_a_first_turn_meets_nothing(vllm: FakeScheduler) -> None:
    assert told(vllm.take_turn(tokens_of(3))) == (0, 0, None)


def test_the_next_turn_of_a_warm_session_simply_continues_it(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    answer = vllm.take_turn(tokens_of(5))
    assert (told(answer), causes(answer)) == ((13, 0, None), [])


def test_where_a_warm_session_diverges_is_told(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3))
    answer = vllm.take_turn(changed(tokens_of(5), 6))
    assert told(answer) == (13, 0, 6)
    assert causes(answer) == [("diverged", "at token 6")]
    head = vllm.published()
    assert head.last_turn is not None
    assert head.last_turn["turn_id"] == "op-1"  # of its ticket
    assert head.last_turn["diverged_at_token"] == 6
    assert head.last_turn["split"]["prompt_tokens"] == 20


def test_a_compacted_history_diverges_where_its_summary_begins(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(20))
    summary = tokens_of(2) + tokens_of(3, first=500)
    assert told(vllm.take_turn(summary)) == (81, 0, 9)
    assert told(vllm.take_turn(summary + tokens_of(1, first=700)))[2] is None


def test_the_snapshots_answer_counts_though_nobody_waited_for_it(vllm: FakeScheduler) -> None:
    turn = vllm.arrive(vllm.ticket(generation=1, restorable_tokens=12), tokens_of(4))
    assert vllm.may_match(turn, vram_tokens=16)
    vllm.match(turn, vram_tokens=16)
    met(vllm, 14, 12, 13)
    answer = vllm.finish(turn)
    assert (told(answer), causes(answer)) == ((14, 12, 13), [("diverged", "at token 13")])


def test_what_forbids_loading_is_told_beside_the_snapshots_size(vllm: FakeScheduler) -> None:
    turn = vllm.arrive(vllm.ticket(generation=1), tokens_of(4))
    met(vllm, 14, 12, 14, causes=(Cause(Reason.WEIGHTS_MISMATCH),))
    vllm.match(turn)
    answer = vllm.finish(turn)
    assert told(answer) == (14, 12, None)
    assert causes(answer) == [("weights_mismatch", "")]


def test_of_head_and_snapshot_the_one_with_more_in_common_counts(vllm: FakeScheduler) -> None:
    vllm.take_turn(changed(tokens_of(3), 5))
    turn = vllm.arrive(vllm.ticket(generation=1), tokens_of(4))
    met(vllm, 21, 20, 17)
    vllm.match(turn)
    answer = vllm.finish(turn)
    assert (told(answer), causes(answer)) == ((21, 20, None), [])


def test_another_session_that_is_nearly_the_same_is_never_met(vllm: FakeScheduler) -> None:
    vllm.take_turn(tokens_of(3), session="s-2")
    answer = vllm.take_turn(changed(tokens_of(3), 2), session="s-1")
    assert told(answer) == (0, 0, None)
    assert [head["tokens"] for head in vllm.published("s-2").branches] == [13]


def test_a_resume_that_was_sampled_on_is_continued_by_the_session(vllm: FakeScheduler) -> None:
    resume = vllm.arrive(vllm.ticket(TicketOp.RESUME), tokens_of(3))
    vllm.match(resume, vram_tokens=12)
    vllm.finish(resume, [99])
    assert told(vllm.take_turn(tokens_of(4))) == (13, 0, None)


@given(some_tokens, some_tokens)
def test_the_place_that_is_told_is_the_end_of_what_the_two_share(
    stored: TokenIds[int], prompt: TokenIds[int]
) -> None:
    clock = FakeClock()
    with clock.installed():
        vllm = FakeScheduler(clock, FakeMovers())
        vllm.take_turn(stored)
        answer = vllm.take_turn(prompt)
    common = common_prefix_tokens(stored, prompt[:-1])
    at = told(answer)[2]
    assert at == (common if common < min(len(stored), len(prompt) - 1) else None)
