from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond_cli.formats import age, count, duration, loss, plain, size

_FACTORS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (95_551_488, "91.1 MiB"),
        (10 << 30, "10.0 GiB"),
    ],
)
def test_size(size_bytes: int, shown: str) -> None:
    assert size(size_bytes) == shown


@given(st.integers(0, 1 << 60))
def test_a_size_is_never_off_by_more_than_it_shows(size_bytes: int) -> None:
    number, unit = size(size_bytes).split()
    assert abs(float(number) * _FACTORS[unit] - size_bytes) <= 0.051 * _FACTORS[unit]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.421, "0.42 s"), (35.4, "35 s"), (180, "3 min"), (5 * 3600, "5 h"), (86_400 * 9, "9 d")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_age_of_something_from_a_clock_that_is_ahead() -> None:
    assert age(1_000.0, 940.0) == "now"


@pytest.mark.parametrize(
    ("passed_s", "shown"), [(0.5, "now"), (1.23, "1 s ago"), (60, "60 s ago"), (7200, "2 h ago")]
)
def test_age(passed_s: float, shown: str) -> None:
    assert age(1_000.0, 1_000.0 + passed_s) == shown


def test_count() -> None:
    assert count(1_234_567) == "1,234,567"


@given(st.text())
def test_plain_text_cannot_steer_a_terminal(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert re.sub("\n", "", shown).isprintable()


def test_what_was_lost_is_told_of_k_and_v() -> None:
    errors = {
        "k": {"rms": 0.0262, "largest": 0.045},
        "v": {"rms": 0.0261, "largest": 0.0449},
    }
    assert loss({"way": "fp8", "errors": errors}) == (
        "fp8, of K 2.62% (largest 4.50%), of V 2.61% (largest 4.49%)"
    )
    assert loss({"way": "fp8", "errors": {}}) == "fp8"
