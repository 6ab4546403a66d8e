from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.canonical import JsonValue
from sessiond.domain.engines import EngineInfo
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.heads import Branch, Head, TurnSplit
from sessiond.domain.ids import DEFAULT_TENANT, SessionId
from sessiond.domain.outcomes import Outcome
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.session import OnEvicted
from sessiond.domain.tokens import token_ids
from sessiond.engine.answers import Answer
from sessiond.engine.pairs import ResumeResult
from sessiond.service import resume_rounds, suspend_rounds
from sessiond.service.engines import Located
from sessiond.service.judge import conclude, movable_tokens, storable_tokens
from sessiond.service.suspend_plans import Plan, Source, begin, moved_on, stops
from sessiond.testing.values import a_session, a_summary, an_engine

CHUNK = 16
MANY = 10_000
chunks = st.integers(0, 40)
causes = st.lists(st.sampled_from(Reason).map(Cause), max_size=2).map(tuple)


@st.composite
def resume_results(draw: st.DrawFn) -> ResumeResult:
    cached, told = draw(chunks) * CHUNK, draw(st.none() | chunks)
    answer = Answer(
        ok=draw(st.booleans()),
        causes=(),
        cached_tokens=None if told is None else told * CHUNK,
        fields={"split": {"disk_tokens": cached}},
    )
    return ResumeResult(
        loadable_tokens=draw(st.integers(0, 40 * CHUNK)),
        causes=draw(causes),
        moved=answer if draw(st.booleans()) else None,
    )


@given(target=chunks, results=st.lists(resume_results(), min_size=1))
def test_a_resume_ends_and_claims_only_what_was_proven(
    target: int, results: list[ResumeResult]
) -> None:
    progress = resume_rounds.begin(target * CHUNK, CHUNK)
    proven = 0
    for at in range(MANY):
        if progress.done:
            break
        result = results[at % len(results)]
        assert 0 < progress.asked_tokens <= progress.target_tokens
        assert progress.asked_tokens % CHUNK == 0
        if result.moved and resume_rounds.is_confirmed(result.moved, progress.asked_tokens):
            proven = max(proven, progress.asked_tokens)
        progress = resume_rounds.after_round(progress, result, MANY)
    assert progress.done
    assert progress.restored_tokens == proven


@given(target=chunks, restored=chunks, disk=chunks)
def test_the_outcome_follows_from_what_was_proven(target: int, restored: int, disk: int) -> None:
    outcome = conclude(target, restored, disk)
    assert (outcome is Outcome.RECOMPUTED) == (restored == 0)
    assert (outcome is Outcome.PARTIAL) == (0 < restored < target)
    assert (outcome is Outcome.WARM) == (restored >= target and restored > 0 and disk == 0)


@st.composite
def round_ends(draw: st.DrawFn) -> suspend_rounds.RoundEnd:
    stored = draw(st.none() | chunks)
    summary = None if stored is None else a_summary(tokens_restorable=stored * CHUNK)
    return suspend_rounds.RoundEnd(summary, draw(causes), draw(st.integers(0, 40 * CHUNK)))


@given(
    asked=st.integers(1, 40),
    kept=chunks,
    on_evicted=st.sampled_from(OnEvicted),
    ends=st.lists(round_ends(), min_size=1),
)
def test_a_suspend_ends_with_the_best_that_was_committed(
    asked: int, kept: int, on_evicted: OnEvicted, ends: list[suspend_rounds.RoundEnd]
) -> None:
    progress = suspend_rounds.Progress(
        CHUNK,
        asked * CHUNK,
        min(kept, asked) * CHUNK,
        source_tokens=asked * CHUNK,
        on_evicted=on_evicted,
    )
    best = -1
    for at in range(MANY):
        if progress.done:
            break
        end = ends[at % len(ends)]
        assert 0 < progress.asked_tokens <= asked * CHUNK
        progress = suspend_rounds.after_round(progress, end, MANY)
        if end.summary:
            best = max(best, end.summary.tokens_restorable)
        assert on_evicted is OnEvicted.RECOMPUTE or not progress.recomputes
    assert progress.done
    assert (progress.best.tokens_restorable if progress.best else -1) == best
    assert 0 <= progress.evicted_tokens <= asked * CHUNK


def test_a_suspend_with_two_stops_asks_for_both() -> None:
    progress = suspend_rounds.Progress(CHUNK, 3 * CHUNK, 0, then_tokens=5 * CHUNK)
    end = suspend_rounds.RoundEnd(a_summary(1, tokens_restorable=3 * CHUNK, chunks=5), ())
    progress = suspend_rounds.after_round(progress, end, MANY)
    assert (progress.done, progress.asked_tokens) == (False, 5 * CHUNK)
    gone = suspend_rounds.RoundEnd(None, (Cause(Reason.KV_EVICTED),), 3 * CHUNK)
    progress = suspend_rounds.after_round(progress, gone, MANY)
    assert progress.done
    assert progress.best == end.summary


@pytest.mark.parametrize("reason", [Reason.DEADLINE, Reason.STORE_FULL, Reason.TIER_OFF])
def test_after_a_refusal_the_second_stop_is_not_tried(reason: Reason) -> None:
    progress = suspend_rounds.Progress(CHUNK, 3 * CHUNK, 0, then_tokens=5 * CHUNK)
    end = suspend_rounds.RoundEnd(None, (Cause(reason),))
    assert suspend_rounds.after_round(progress, end, MANY).done


def test_what_was_gone_of_a_head_is_not_said_of_the_next_one() -> None:
    engine = windowed_engine([0])
    branch = Branch(token_ids(range(6 * CHUNK)), "", "", 0.0, TurnSplit(prompt_tokens=6 * CHUNK))
    head = Head(DEFAULT_TENANT, SessionId("s"), engine.engine_id, 1, 0, 0.0, (branch,))
    source = Source(Located(engine, head), branch, 6 * CHUNK)
    session = a_session("s")
    plan = Plan(session, None, source, 0, OnEvicted.RECOMPUTE)
    progress = begin(plan)
    for reason in (Reason.KV_EVICTED, Reason.HEAD_STALE):
        end = suspend_rounds.RoundEnd(None, (Cause(reason),), 2 * CHUNK)
        progress = suspend_rounds.after_round(progress, end, MANY)
    assert (progress.evicted_tokens, progress.recomputes) == (4 * CHUNK, True)
    assert progress.head_is_stale
    progress = moved_on(progress, plan)
    stored = suspend_rounds.RoundEnd(a_summary(tokens_restorable=6 * CHUNK), ())
    assert (progress.evicted_tokens, progress.recomputes) == (0, False)
    progress = suspend_rounds.after_round(progress, stored, MANY)
    assert (progress.done, progress.evicted_tokens, progress.causes) == (True, 0, ())


def test_a_head_that_moves_on_for_ever_ends_the_suspend() -> None:
    progress = suspend_rounds.Progress(CHUNK, 3 * CHUNK, 0)
    end = suspend_rounds.RoundEnd(None, (Cause(Reason.HEAD_STALE),))
    for _ in range(4):
        progress = replace(progress, then_tokens=5 * CHUNK)  # as a fresh look at the head does
        progress = suspend_rounds.after_round(progress, end, MANY)
    assert progress.done


def test_chunks_that_restore_nothing_yet_are_progress() -> None:
    progress = suspend_rounds.Progress(CHUNK, 9 * CHUNK, 0)
    for chunks, tokens in ((4, 0), (8, 0), (11, 9 * CHUNK)):
        assert not progress.done
        summary = a_summary(chunks, tokens_restorable=tokens, chunks=chunks)
        progress = suspend_rounds.after_round(progress, suspend_rounds.RoundEnd(summary, ()), MANY)
    assert progress.done
    assert progress.best is not None
    assert progress.best.tokens_restorable == 9 * CHUNK


def test_rounds_are_bounded() -> None:
    progress = suspend_rounds.Progress(CHUNK, 1600, 0)
    for at in range(1, 4):
        end = suspend_rounds.RoundEnd(a_summary(at, tokens_restorable=at * CHUNK), ())
        progress = suspend_rounds.after_round(progress, end, max_rounds=3)
    assert progress.done


@given(kv=st.integers(0, 500), limit=st.integers(2, 500))
def test_a_request_fits_into_the_model(kv: int, limit: int) -> None:
    tokens = movable_tokens(kv, CHUNK, limit)
    assert tokens % CHUNK == 0
    assert 0 <= tokens <= kv
    assert tokens + 2 <= limit or tokens == 0


def windowed_engine(windows: list[int], *, keeps_replies: bool = True) -> EngineInfo:
    groups: JsonValue = [{"window_tokens": window} for window in windows]
    return an_engine(
        fingerprint=Fingerprint({"kv_groups": groups}),
        chunk_tokens=CHUNK,
        max_model_tokens=1 << 20,
        keeps_replies=keeps_replies,
    )


def test_replies_that_vllm_forgets_are_not_asked_for() -> None:
    branch = Branch(token_ids(range(170)), "", "", 0.0, TurnSplit(prompt_tokens=100))
    assert storable_tokens(branch, windowed_engine([0, 64])) == 160
    assert storable_tokens(branch, windowed_engine([0, 64], keeps_replies=False)) == 96


@pytest.mark.parametrize(
    ("windows", "kept", "asked"),
    [
        ([0], 0, (160, 0)),
        ([0, 64], 0, (96, 160)),  # the window at the last prompt's end, then that of the head
        ([0, 64], 96, (160, 0)),  # which the newest snapshot has
        ([0, 64], 48, (96, 160)),
    ],
)
def test_with_windows_the_end_of_the_last_prompt_is_kept_as_well(
    windows: list[int], kept: int, asked: tuple[int, int]
) -> None:
    engine = windowed_engine(windows)
    branch = Branch(token_ids(range(170)), "", "", 0.0, TurnSplit(prompt_tokens=100))
    head = Head(DEFAULT_TENANT, SessionId("s"), engine.engine_id, 1, 0, 0.0, (branch,))
    source = Source(Located(engine, head), branch, 160)
    assert stops(source, kept) == asked
