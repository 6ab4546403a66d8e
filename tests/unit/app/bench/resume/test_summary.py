from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.app.bench.resume.capacity import Budgets, capacity
from sessiond.app.bench.resume.gates import (
    STORED,
    VS_FLOOR,
    VS_FS,
    VS_LMCACHE,
    VS_RECOMPUTE,
    gates,
)
from sessiond.app.bench.resume.lmcache import NOT_INSTALLED, versions
from sessiond.app.bench.resume.options import COLD, FS, PLANAR, PRESSURE, RECOMPUTE, VRAM
from sessiond.app.bench.resume.samples import FIRST_TURN, WARM_TURN, Found, Sample, write_csv
from sessiond.app.bench.resume.summary import (
    distribution,
    main_series,
    offload_on_vs_off,
    ratios,
    stored_vs_raw,
)


def found(**seconds: Mapping[str, float]) -> Found:
    """Return a run in which *seconds* are those of each session, by series."""
    made = Found()
    for series, by_session in seconds.items():
        for session, each in by_session.items():
            made.samples.append(Sample(series, COLD, session, 1024, each, 1024))
    made.stored_bytes[PLANAR] = {"a": 10_000_000, "b": 10_000_000}
    made.device_bytes_s[PLANAR] = {"a": 1e9, "b": 2e9}
    return made


RUN = found(
    **{
        PLANAR: {"a": 0.2, "b": 0.4},
        RECOMPUTE: {"a": 8.0, "b": 32.0},
        VRAM: {"a": 0.09, "b": 0.095},
        FS: {"a": 0.1, "b": 0.8},
    }
)


def test_ratios_compare_the_same_session() -> None:
    measured = ratios(RUN, PLANAR, 1024)
    assert measured[VS_RECOMPUTE] == pytest.approx((0.2 / 8 + 0.4 / 32) / 2)
    assert measured[VS_FS] == pytest.approx((2 + 0.5) / 2)
    # From VRAM, and 10 MB at the rate that was measured just before.
    assert measured[VS_FLOOR] == pytest.approx((0.2 / 0.1 + 0.4 / 0.1) / 2)
    assert measured[VS_LMCACHE] is None


def test_other_contexts_and_scenarios_are_left_out() -> None:
    more = found(**{PLANAR: {"a": 0.2}, RECOMPUTE: {"a": 8.0}})
    more.samples.append(Sample(PLANAR, PRESSURE, "a", 1024, 99.0, 0))
    more.samples.append(replace(more.samples[0], tokens=2048, seconds=77.0))
    assert ratios(more, PLANAR, 1024)[VS_RECOMPUTE] == pytest.approx(0.025)
    assert more.seconds(PLANAR, COLD) == [0.2, 77.0]
    assert more.rows() == [
        (PLANAR, COLD, 1024),
        (RECOMPUTE, COLD, 1024),
        (PLANAR, PRESSURE, 1024),
        (PLANAR, COLD, 2048),
    ]


def test_stored_bytes_are_compared_with_the_kv() -> None:
    assert stored_vs_raw(RUN, PLANAR, 20_000) == pytest.approx(20e6 / (2 * 1024 * 20_000))
    assert stored_vs_raw(RUN, FS, 20_000) is None
    assert main_series(RUN) == PLANAR


def test_what_a_connector_adds_to_turns_that_need_none_of_it() -> None:
    more = found(**{RECOMPUTE: {"a": 8.0, "b": 10.0}, VRAM: {"a": 0.1}})
    for session, seconds in (("a", 8.8), ("b", 12.0)):
        more.samples.append(Sample(PLANAR, FIRST_TURN, session, 1024, seconds, 0))
    assert offload_on_vs_off(more, 1024) == {
        PLANAR: {FIRST_TURN: pytest.approx(1.15), WARM_TURN: None}
    }


def test_a_distribution_by_hand() -> None:
    shown = distribution([0.5, 0.1, 0.2, 0.3, 0.4])
    assert shown["count"] == 5
    assert shown["p50_s"] == pytest.approx(0.3)
    assert shown["p90_s"] == shown["p99_s"] == shown["most_s"] == pytest.approx(0.5)
    assert [shown["least_s"], shown["mean_s"]] == pytest.approx([0.1, 0.3])


def test_gates_say_what_is_met_what_is_not_and_what_was_not_measured() -> None:
    measured = {VS_RECOMPUTE: 0.02, VS_FLOOR: 1.5, VS_FS: None, STORED: 0.7}
    rows = {row.name: row for row in gates(measured, {VS_LMCACHE: NOT_INSTALLED})}
    assert rows[VS_RECOMPUTE].met is True
    assert rows[VS_RECOMPUTE].must == pytest.approx(1 / 40)
    assert rows[VS_FLOOR].met is False
    assert rows[STORED].met is True
    assert (rows[VS_FS].met, rows[VS_FS].reason) == (None, "not measured")
    assert (rows[VS_LMCACHE].measured, rows[VS_LMCACHE].reason) == (None, NOT_INSTALLED)


def test_capacity_is_what_a_budget_holds_whole() -> None:
    held = capacity(Budgets(450, 199, 1000), 100, {"a": 70, "b": 0}, {"vram": 3})
    assert (held["vram"]["sessions"], held["vram"]["sessions_measured"]) == (4, 3)
    assert (held["ram"]["sessions"], held["ram"]["sessions_measured"]) == (1, None)
    assert {name: one["sessions"] for name, one in held["disk"].items()} == {"a": 14, "b": 0}


def test_all_samples_are_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "samples.csv"
    write_csv(path, RUN.samples)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(RUN.samples)
    assert (rows[0]["series"], float(rows[0]["seconds"])) == (PLANAR, 0.2)


def test_an_environment_without_lmcache_takes_no_part(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"vllm": "0.32.0"}\'\n')
    python.chmod(0o700)
    assert versions(python) == {}
    python.write_text('#!/bin/sh\necho \'{"lmcache": "0.5.6", "vllm": "0.32.0"}\'\n')
    assert versions(python) == {"lmcache": "0.5.6", "vllm": "0.32.0"}
    assert versions(None) == {}
