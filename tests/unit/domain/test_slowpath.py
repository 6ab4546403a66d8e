"""Restore paths that lose against computing, and their cause."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.domain.curves import PrefillCurve, Trust
from sessiond.domain.samples import Tier
from sessiond.domain.slowpath import MOST_RESTORES, Restore, Stage, diagnose
from sessiond.domain.timing import TurnTiming

#: A token is computed in a millisecond.
MEASURED = PrefillCurve(0.0, 0.001, 0.0, trust=Trust(samples=8, weight=8.0))
#: A second of computing.
TOKENS = 1000

SLOW_BY: dict[Stage, TurnTiming] = {
    Stage.QUEUE: TurnTiming(queue_s=1.5, load_s=0.5, read_s=0.3, decode_s=0.1),
    Stage.LOOKUP: TurnTiming(lookup_s=1.5, load_s=0.5, read_s=0.3, decode_s=0.1),
    # Two threads: what they spent is more than the load took.
    Stage.DISK: TurnTiming(lookup_s=0.1, load_s=1.9, read_s=3.0, decode_s=0.5),
    Stage.DECODE: TurnTiming(lookup_s=0.1, load_s=1.9, read_s=0.5, decode_s=3.0),
    Stage.BUS: TurnTiming(lookup_s=0.1, load_s=1.9, read_s=0.3, decode_s=0.3),
}
SLOW = SLOW_BY[Stage.DISK]
QUICK = TurnTiming(lookup_s=0.01, load_s=0.2, read_s=0.1, decode_s=0.1)


def restores(*timings: TurnTiming, tokens: int = TOKENS) -> list[Restore]:
    return [
        Restore(1000.0 + n, replace(one, disk_tokens=tokens, prefill_from_token=tokens))
        for n, one in enumerate(timings)
    ]


@pytest.mark.parametrize("stage", Stage)
def test_the_cause_is_the_stage_that_takes_longest(stage: Stage) -> None:
    found = diagnose(Tier.NVME, restores(*[SLOW_BY[stage]] * 6), MEASURED)

    assert found is not None
    assert found.cause is stage
    assert (found.restores, found.load_s, found.recompute_s) == pytest.approx((6, 12.0, 6.0))
    assert sum(dict(found.shares).values()) == pytest.approx(1.0)
    assert found.since_unix_s == 1005.0
    assert "The last 6 loads from nvme took 12 s together" in found.sentence
    assert json.loads(json.dumps(found.as_json()))["cause"] == stage.value


def test_a_load_from_ram_that_is_slow_is_slow_by_the_bus() -> None:
    slow = TurnTiming(load_s=2.0, ram_tokens=TOKENS, prefill_from_token=TOKENS)

    found = diagnose(Tier.RAM, [Restore(float(n), slow) for n in range(5)], MEASURED)

    assert found is not None
    assert (found.tier, found.cause) == (Tier.RAM, Stage.BUS)


@pytest.mark.parametrize(
    ("timings", "why"),
    [
        ([], "nothing was loaded"),
        ([SLOW] * 4, "too few"),
        ([QUICK] * 16, "loads pay"),
        ([*[QUICK] * 6, replace(SLOW, load_s=60.0)], "one stall makes no slow path"),
        ([SLOW] * 8 + [QUICK] * 16, "only the newest count"),
    ],
)
def test_nothing_is_wrong(timings: list[TurnTiming], why: str) -> None:
    assert diagnose(Tier.NVME, restores(*timings), MEASURED) is None, why


def test_many_small_loads_of_no_account_make_no_slow_path() -> None:
    small = restores(*[TurnTiming(load_s=0.02)] * 9, tokens=10)
    large = restores(*[TurnTiming(load_s=1.0)] * 6, tokens=2000)

    assert diagnose(Tier.NVME, small, MEASURED) is not None
    assert diagnose(Tier.NVME, [*large, *small], MEASURED) is None


def test_without_a_measured_prefill_nothing_is_said() -> None:
    assumed = replace(MEASURED, trust=Trust())

    assert diagnose(Tier.NVME, restores(*[SLOW] * 8), assumed) is None


def test_loads_of_long_ago_do_not_count() -> None:
    old = [replace(one, at_unix_s=one.at_unix_s - 1e6) for one in restores(*[SLOW] * 8)]

    assert diagnose(Tier.NVME, [*old, *restores(*[SLOW] * 4)], MEASURED) is None


def test_a_path_is_slow_until_its_loads_take_no_longer() -> None:
    near = restores(*[TurnTiming(load_s=1.05)] * 8)
    before = diagnose(Tier.NVME, restores(*[SLOW] * 8), MEASURED)
    assert before is not None

    assert diagnose(Tier.NVME, near, MEASURED) is None
    still = diagnose(Tier.NVME, near, MEASURED, before)
    assert still is not None
    assert still.since_unix_s == before.since_unix_s
    assert diagnose(Tier.NVME, restores(*[QUICK] * 8), MEASURED, before) is None


seconds = st.floats(0.0, 1e3)


@given(
    st.lists(
        st.builds(
            TurnTiming,
            lookup_s=seconds,
            queue_s=seconds,
            load_s=seconds,
            read_s=seconds,
            decode_s=seconds,
        ),
        max_size=2 * MOST_RESTORES,
    )
)
def test_stages_are_the_whole_and_a_finding_is_a_loss(timings: list[TurnTiming]) -> None:
    given_restores = restores(*timings)
    for one in given_restores:
        parts = one.stages()
        assert min(parts.values()) >= 0.0
        assert sum(parts.values()) == pytest.approx(one.seconds)

    found = diagnose(Tier.NVME, given_restores, MEASURED)

    assert found is None or (
        found.load_s > found.recompute_s
        and found.restores <= MOST_RESTORES
        and dict(found.shares)[found.cause] == max(dict(found.shares).values())
    )
