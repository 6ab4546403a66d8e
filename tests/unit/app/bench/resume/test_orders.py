from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.app.bench.resume.options import FS, PLANAR, RECOMPUTE, ResumeOptions
from sessiond.app.bench.resume.sessions import due_s, orders
from sessiond.domain.errors import ConfigurationError

TOKENS = list(range(40_000))
OPTIONS = ResumeOptions(Path("folder"), Path("models"), contexts=(512, 1000), rounds=4, passes=2)
WHO = (RECOMPUTE, PLANAR, FS)


def test_the_seed_alone_decides_every_order() -> None:
    assert orders(TOKENS, OPTIONS, WHO) == orders(TOKENS, OPTIONS, WHO)
    assert due_s(5, 2.0, 7) == due_s(5, 2.0, 7)
    several = {orders(TOKENS, replace(OPTIONS, seed=seed), WHO)[0].arriving for seed in range(5)}
    assert len(several) > 1
    assert due_s(5, 2.0, 7) != due_s(5, 2.0, 8)


def test_every_second_pass_runs_backwards() -> None:
    first, second = orders(TOKENS, OPTIONS, WHO)
    assert sorted(first.contestants) == sorted(WHO)
    assert second.contestants == first.contestants[::-1]


def test_every_round_has_a_session_of_each_length_in_one_pass() -> None:
    first, second = orders(TOKENS, OPTIONS, WHO)
    for one in (first, second):
        assert set(one.prepared) == set(one.arriving)
        assert one.first not in one.arriving
        assert [each.whole_tokens for each in one.longest] == [1024, 1024]
    names = [each.name for one in (first, second) for each in one.arriving]
    assert len(set(names)) == len(names) == OPTIONS.rounds * len(OPTIONS.contexts)


def test_no_two_sessions_begin_alike() -> None:
    found = [
        each.prompt[0]
        for one in orders(TOKENS, OPTIONS, WHO)
        for each in (*one.arriving, one.first)
    ]
    assert len(set(found)) == len(found)


def test_a_prompt_ends_two_tokens_after_whole_chunks() -> None:
    (longest,) = {len(one.longest[0].prompt) for one in orders(TOKENS, OPTIONS, WHO)}
    assert longest == 1024 + 2


def test_arrivals_are_due_one_after_the_other() -> None:
    times = due_s(20, 2.0, 0)
    assert times == sorted(times)
    assert all(0 <= time - 2.0 * place <= 1.0 for place, time in enumerate(times))


@pytest.mark.parametrize(
    ("given", "whole"),
    [((2048, 4096, 7900), (2048, 4096, 7936)), ((1, 300, 300), (256,)), ((640,), (512,))],
)
def test_contexts_are_rounded_to_what_all_can_keep(
    given: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    assert replace(OPTIONS, contexts=given).whole_tokens == whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contexts": (8192,)}, "at most 7936"),
        ({"contexts": (0,)}, "above zero"),
        ({"passes": 9}, "passes"),
        ({"interval_s": 0.0}, "above zero"),
        ({"contestants": ("nobody", RECOMPUTE)}, "nobody"),
        ({"contestants": (PLANAR,)}, RECOMPUTE),
        ({"contestants": (RECOMPUTE,)}, "one takes part"),
        ({"scenarios": ("warm",)}, "warm"),
        ({"lmcache_python": Path("/nowhere/python")}, "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], words: str) -> None:
    OPTIONS.require_possible()
    with pytest.raises(ConfigurationError, match=words):
        replace(OPTIONS, **changes).require_possible()  # type: ignore[arg-type]
