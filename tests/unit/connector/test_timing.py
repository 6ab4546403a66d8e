"""What a ticketed request took: each stage by itself, and nothing left out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.connector import guard
from sessiond.connector.timing import Stage, Steps, Stopwatch
from sessiond.domain.heads import TurnSplit
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tickets import TicketOp
from sessiond.domain.timing import TurnTiming
from sessiond.testing.fake_mover import FakeClock
from sessiond.testing.fake_scheduler import CHUNK_TOKENS, FakeScheduler, tokens_of

STAGES = ("lookup_s", "queue_s", "load_s", "waiting_s", "prefill_s")


def stages(timing: dict[str, Any]) -> dict[str, float]:
    """Return the stages that took place, and prove that they are the whole."""
    TurnTiming.from_json(timing)
    assert sum(timing[name] for name in STAGES) == pytest.approx(timing["ready_s"], abs=1e-5)
    return {name.removesuffix("_s"): timing[name] for name in STAGES if timing[name]}


def test_a_cold_turn_is_computed(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    clock.sleep(0.25)
    assert vllm.may_match(request)
    assert vllm.match(request)
    vllm.step(**{request: 13})
    clock.sleep(2.0)
    vllm.output()
    vllm.step(**{request: 1})
    clock.sleep(7.0)  # it goes on decoding
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"waiting": 0.25, "prefill": 2.0}
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (0, 13)
    assert (timing["read_bytes"], timing["others_running"]) == (0, 0)


def test_one_that_ends_with_its_first_token_is_measured_too(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.may_match(request)
    vllm.match(request, vram_tokens=8)
    vllm.step(**{request: 5})
    clock.sleep(0.5)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"prefill": 0.5}
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (8, 13)


def test_a_restored_turn_is_looked_up_loaded_and_computed(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    clock.sleep(0.004)
    vllm.mover.open_load(3)
    assert vllm.may_match(request)
    load(vllm, clock, request)
    vllm.step(**{request: 1})
    clock.sleep(0.1)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"lookup": 0.004, "load": 0.75, "prefill": 0.1}
    assert (timing["read_bytes"], timing["read_s"], timing["decode_s"]) == (700, 0.3, 0.1)
    assert (timing["disk_tokens"], timing["ram_tokens"]) == (12, 0)
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (12, 13)


def load(vllm: FakeScheduler, clock: FakeClock, request: str, chunks: int = 3) -> None:
    """Load chunks in 0.5 s from disk into RAM, and in 0.25 s from there into VRAM."""
    vllm.load(1, request, range(chunks))
    clock.sleep(0.5)
    vllm.mover.end_load()
    assert vllm.may_match(request)
    vllm.done()
    assert vllm.match(request, external_tokens=chunks * CHUNK_TOKENS)
    vllm.step()
    clock.sleep(0.25)
    vllm.coordinator.in_vram(request)
    vllm.output()


def test_the_line_for_the_ram_tier_is_a_stage_of_its_own(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    first = vllm.arrive(vllm.ticket(generation=1), tokens_of(8))
    vllm.mover.open_load(8)
    assert vllm.may_match(first)
    second = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    clock.sleep(1.0)  # its answer is there, and nobody asks
    assert not vllm.may_match(second)
    clock.sleep(2.0)
    assert not vllm.may_match(second)
    clock.sleep(4.0)
    vllm.abort(first)
    assert vllm.may_match(second)
    load(vllm, clock, second)
    vllm.step(**{second: 1})
    clock.sleep(0.125)
    timing = vllm.output(finishes=second)["timing"]
    assert stages(timing) == {"lookup": 1.0, "queue": 6.0, "load": 0.75, "prefill": 0.125}


def test_a_turn_whose_kv_is_in_vram_waits_for_no_answer(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    clock.sleep(0.25)
    assert vllm.may_match(request, vram_tokens=12)
    vllm.match(request, vram_tokens=12)
    vllm.step(**{request: 1})
    vllm.mover.open_load(3)
    clock.sleep(0.5)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"waiting": 0.25, "prefill": 0.5}
    assert (timing["load_s"], timing["read_bytes"]) == (0, 0)


def test_a_copy_from_ram_is_a_load_without_reads(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.may_match(request)
    vllm.match(request, vram_tokens=4, external_tokens=8)
    vllm.step()
    clock.sleep(0.25)
    vllm.coordinator.in_vram(request)
    vllm.output()
    vllm.step(**{request: 1})
    clock.sleep(0.5)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"load": 0.25, "prefill": 0.5}
    assert (timing["ram_tokens"], timing["disk_tokens"], timing["read_bytes"]) == (8, 0, 0)


def test_a_full_vram_is_no_slow_load(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    vllm.may_match(request)
    vllm.load(1, request, range(3))
    clock.sleep(0.5)
    vllm.mover.end_load()
    vllm.may_match(request)
    for _ in range(3):  # steps of others, until their blocks are free
        vllm.step(other=1)
        clock.sleep(1.0)
        vllm.output()
    vllm.match(request, external_tokens=12)
    vllm.coordinator.in_vram(request)
    vllm.step(**{request: 1})
    clock.sleep(0.125)
    timing = vllm.output(finishes=request)["timing"]
    # Two steps are what vLLM may need to see that the chunks are there.
    assert stages(timing) == {"load": 2.5, "waiting": 1.0, "prefill": 0.125}


def test_a_resume_that_lacks_kv_tells_what_its_load_took(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = vllm.arrive(vllm.ticket(TicketOp.RESUME, generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    vllm.may_match(request)
    vllm.load(1, request, range(3))
    clock.sleep(0.5)
    vllm.mover.end_load(Cause(Reason.SNAPSHOT_CORRUPT), failed=frozenset({2}))
    vllm.may_match(request)
    assert not vllm.match(request, external_tokens=8)
    waiting = vllm.outcome()
    assert vllm.may_match(waiting)
    timing = vllm.finish(waiting)["timing"]
    assert stages(timing) == {"load": 0.5}
    assert (timing["read_bytes"], timing["prefill_s"]) == (700, 0)


def test_a_resume_s_answer_has_it(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = vllm.arrive(vllm.ticket(TicketOp.RESUME, generation=1), tokens_of(3))
    vllm.mover.open_load(3)
    vllm.may_match(request)
    load(vllm, clock, request)
    vllm.step(**{request: 1})
    clock.sleep(0.125)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"load": 0.75, "prefill": 0.125}


def test_a_lost_mover_s_time_is_what_it_was(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = vllm.arrive(vllm.ticket(generation=1), tokens_of(3))
    clock.sleep(0.5)
    assert not vllm.may_match(request)
    vllm.mover.die()
    assert vllm.may_match(request)
    clock.sleep(1.0)
    vllm.match(request)
    vllm.step(**{request: 13})
    clock.sleep(2.0)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"lookup": 0.5, "waiting": 1.0, "prefill": 2.0}


# Steps


def test_a_prefill_in_parts_ends_with_the_last(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = computing(vllm)
    for tokens in (4, 4, 5):
        vllm.step(**{request: tokens})
        clock.sleep(1.0)
        vllm.output()
    timing = vllm.finish(request)["timing"]
    assert stages(timing) == {"prefill": 3.0}
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (0, 13)


def computing(vllm: FakeScheduler) -> str:
    request = vllm.arrive(vllm.ticket(), tokens_of(3))
    vllm.may_match(request)
    vllm.match(request)
    return request


def test_a_step_that_was_scheduled_ahead_begins_after_the_one_before(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    vllm.step(other=1)
    clock.sleep(0.25)
    request = computing(vllm)
    vllm.step(**{request: 13, "other": 1})
    clock.sleep(1.0)
    vllm.output()  # of the other one's
    vllm.step(**{request: 1, "other": 1})
    clock.sleep(2.0)
    vllm.output()
    timing = vllm.finish(request)["timing"]
    assert stages(timing) == {"waiting": 1.0, "prefill": 2.0}
    assert timing["others_running"] == 1.0


def test_others_are_counted_by_the_time_that_they_ran(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    vllm.step(a=1, b=1, c=1)
    clock.sleep(9.0)
    vllm.output()
    request = computing(vllm)
    vllm.step(**{request: 4, "a": 1, "b": 1})
    clock.sleep(3.0)
    vllm.output()
    vllm.step(**{request: 9})
    clock.sleep(1.0)
    timing = vllm.output(finishes=request)["timing"]
    assert timing["others_running"] == 1.5


def test_what_a_preemption_undid_is_time_lost(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = computing(vllm)
    vllm.step(**{request: 4})
    clock.sleep(1.0)
    vllm.output()
    vllm.step(other=1)
    clock.sleep(2.0)
    vllm.output()
    assert vllm.may_match(request, vram_tokens=4)
    vllm.match(request, vram_tokens=4)
    vllm.step(**{request: 9})
    clock.sleep(0.5)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"waiting": 3.0, "prefill": 0.5}
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (4, 13)


def test_what_happens_after_the_first_token_changes_nothing(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = computing(vllm)
    vllm.step(**{request: 13})
    clock.sleep(0.5)
    vllm.output()
    clock.sleep(5.0)
    vllm.may_match(request)
    vllm.match(request, external_tokens=8)  # it was preempted
    clock.sleep(5.0)
    vllm.coordinator.in_vram(request)
    vllm.step(**{request: 6})
    clock.sleep(5.0)
    timing = vllm.output(finishes=request)["timing"]
    assert stages(timing) == {"prefill": 0.5}


def test_one_that_is_aborted_has_no_prefill(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = computing(vllm)
    vllm.step(**{request: 4})
    clock.sleep(1.0)
    vllm.output()
    timing = vllm.finish(request, (), aborted=True, computed_tokens=4)["timing"]
    assert stages(timing) == {"waiting": 1.0}
    assert (timing["prefill_from_token"], timing["prefill_to_token"]) == (0, 0)


def test_requests_that_are_ready_or_over_cost_nothing() -> None:
    steps, computed, looks = Steps(), {"ready": 0, "over": 0, "dropped": 0}, list[str]()

    def look(name: str) -> int:
        looks.append(name)
        return computed[name]

    for name in computed:
        steps.watch(name, Stopwatch(steps.mark, 10, partial(look, name)))
    steps.finished("over", 0)
    steps.forget("dropped")
    for _ in range(2):
        steps.began({"ready": 10, "over": 1, "dropped": 1})
        computed["ready"] += 10
        steps.ended()
    assert looks == ["ready", "ready"]  # before its prefill and after it


def test_the_head_and_the_answer_tell_the_same(vllm: FakeScheduler, clock: FakeClock) -> None:
    request = computing(vllm)
    vllm.step(**{request: 13})
    clock.sleep(0.5)
    timing = vllm.output(finishes=request)["timing"]
    told = vllm.published().last_turn
    assert told is not None
    assert told["timing"] == timing
    assert timing["prefill_s"] == 0.5


def test_a_request_without_steps_is_answered_all_the_same(
    vllm: FakeScheduler, clock: FakeClock
) -> None:
    request = computing(vllm)
    clock.sleep(1.0)
    assert stages(vllm.finish(request)["timing"]) == {"waiting": 1.0}
    assert not guard.failures


# Any story

EVENTS = st.lists(
    st.tuples(
        st.floats(0, 10),
        st.sampled_from(
            [*Stage, "leave", "placed", "copied", "reads_over", "computes", "passed", "output"]
        ),
    ),
    max_size=30,
)


@given(EVENTS, st.integers(0, 3))
def test_stages_never_overlap_and_leave_nothing_out(
    events: list[tuple[float, Any]], others: int
) -> None:
    clock = FakeClock()
    with clock.installed():
        steps = Steps()
        computed = 0
        watch = Stopwatch(steps.mark, 10, lambda: computed)
        steps.began([str(number) for number in range(others)])
        earlier = steps.mark()
        for seconds, event in events:
            clock.sleep(seconds)
            if isinstance(event, Stage):
                watch.enter(event)
            elif event == "output":
                computed = min(10, computed + 4)
                watch.look(earlier)
                earlier = steps.mark()
            else:
                STEPS[event](watch, steps)
        told = watch.timing(TurnSplit(10))
    assert min(getattr(told, name) for name in STAGES) >= 0
    total_s = sum(getattr(told, name) for name in STAGES)
    assert total_s == pytest.approx(told.ready_s, abs=1e-4)
    assert told.ready_s <= sum(seconds for seconds, _ in events) + 1e-4
    assert 0 <= told.others_running <= others + 1e-3
    assert TurnTiming.from_json(told.as_json()) == told


STEPS: dict[str, Any] = {
    "leave": lambda watch, _: watch.leave(Stage.LOAD, Stage.QUEUE, Stage.LOOKUP),
    "placed": lambda watch, _: watch.placed(0),
    "copied": lambda watch, _: watch.placed(4),
    "reads_over": lambda watch, _: watch.reads_over(),
    "computes": lambda watch, steps: watch.computes(steps.mark()),
    "passed": lambda watch, _: watch.passed_over(),
}
