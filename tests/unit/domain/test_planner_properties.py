from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.canonical import canonical_json
from sessiond.domain.courses import Course
from sessiond.domain.estimates import Estimate, about
from sessiond.domain.planner import plan
from sessiond.domain.plans import PlanChoice, PlanInputs, PlanPolicy, Span
from sessiond.domain.samples import Tier
from sessiond.testing.planning import GIB, curves, load_curve, prefill_curve

TIERS = [Tier.RAM, Tier.NVME, Tier.ARCHIVE]


@st.composite
def contexts(draw: st.DrawFn, most_spans: int = 3) -> PlanInputs:
    """Draw contexts in several tiers, with curves that are well known."""
    chunk = draw(st.integers(50, 300))
    steps = draw(st.lists(st.integers(1, 5000), min_size=1, max_size=most_spans))
    tiers = draw(st.permutations(TIERS))[: len(steps)]
    end, spans = draw(st.sampled_from([0, 0, 700])), []
    if end:
        spans.append(Span(Tier.VRAM, end, 0))
    for tier, step in zip(tiers, steps, strict=True):
        end += step
        spans.append(Span(tier, end, draw(st.integers(0, GIB))))
    loads = [
        load_curve(tier, draw(st.floats(0, 0.1)), 10 ** draw(st.floats(6, 11))) for tier in TIERS
    ]
    prefill = prefill_curve(
        draw(st.floats(0, 0.1)), draw(st.floats(0, 0.01)), draw(st.floats(0, 1e-6))
    )
    return PlanInputs(draw(st.integers(1, end + 500)), chunk, tuple(spans), curves(prefill, *loads))


QUEUES = st.builds(about, st.floats(0, 3), st.floats(0, 0.5))


@settings(max_examples=60)
@given(inputs=contexts(), engine=QUEUES, load=QUEUES, room=st.none() | st.integers(0, 9000))
def test_no_whole_chunk_boundary_is_better_than_the_choice(
    inputs: PlanInputs, engine: Estimate, load: Estimate, room: int | None
) -> None:
    inputs = replace(inputs, engine_queue=engine, load_queue=load, room_tokens=room)
    found, course = plan(inputs), Course(inputs)
    limit = course.end_token if room is None else course.resident_tokens + room
    times = [course.way(stop).ready.likely_s for stop in course.stops if stop <= limit]
    recompute_s = found.recompute.ready.likely_s
    best_s = min(times, default=recompute_s)
    if found.loads:
        assert found.expected.ready.likely_s == pytest.approx(best_s, rel=1e-9)
        assert best_s < recompute_s
        assert found.load_tokens in course.stops
        assert found.load_tokens <= limit
    else:
        assert best_s > recompute_s - inputs.margin.of(recompute_s) - 1e-9


@settings(max_examples=60)
@given(inputs=contexts(most_spans=1))
def test_of_one_tier_all_or_nothing_is_loaded(inputs: PlanInputs) -> None:
    # Beyond what is stored, something has to be computed whatever is loaded.
    assert plan(inputs).choice is not PlanChoice.PARTIAL


@settings(max_examples=60)
@given(inputs=contexts(), policy=st.sampled_from(PlanPolicy), engine=QUEUES, load=QUEUES)
def test_a_plan_is_sane_whatever_it_is_made_from(
    inputs: PlanInputs, policy: PlanPolicy, engine: Estimate, load: Estimate
) -> None:
    inputs = replace(inputs, policy=policy, objective_s=0.5, engine_queue=engine, load_queue=load)
    found = plan(inputs)
    for way in (found.recompute, found.expected, found.load or found.recompute):
        assert 0.0 <= way.ready.low_s <= way.ready.likely_s <= way.ready.high_s
    assert found.loads is (found.expected is not found.recompute)
    assert found.load_tokens == found.expected.load_tokens
    assert found.load_tokens <= inputs.target_tokens
    if found.choice is PlanChoice.PARTIAL:
        assert found.causes
    assert json.loads(canonical_json(found.as_json()))["choice"] == found.choice.value


@settings(max_examples=60)
@given(inputs=contexts(), first=QUEUES, more=QUEUES)
def test_a_longer_queue_never_makes_a_load_win(
    inputs: PlanInputs, first: Estimate, more: Estimate
) -> None:
    before = plan(replace(inputs, load_queue=first))
    after = plan(replace(inputs, load_queue=first + more))
    assert before.loads or not after.loads


@settings(max_examples=60)
@given(inputs=contexts(), faster=st.floats(1, 100))
def test_a_faster_disk_never_makes_a_load_lose(inputs: PlanInputs, faster: float) -> None:
    loads = inputs.curves.loads
    quick = {
        tier: replace(curve, bytes_per_s=curve.bytes_per_s * faster)
        for tier, curve in loads.items()
    }
    found = plan(inputs)
    after = plan(replace(inputs, curves=replace(inputs.curves, loads=quick)))
    assert after.loads or not found.loads
