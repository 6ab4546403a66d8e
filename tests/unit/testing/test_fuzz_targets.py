from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.testing.fuzz.base import COUNTS
from sessiond.testing.fuzz.targets import TARGETS

NAMES = st.sampled_from(sorted(TARGETS))
SEEDS = {name: one.seeds() for name, one in TARGETS.items()}
PLACES = [(name, place) for name, seeds in SEEDS.items() for place in range(len(seeds))]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_seeds_reach_the_end_of_a_reader(name: str, place: int) -> None:
    """A seed that all readers refuse teaches the fuzzer nothing."""
    COUNTS.clear()
    TARGETS[name].run(SEEDS[name][place])
    assert COUNTS["tried"] > COUNTS["refused"]


@given(name=NAMES, place=st.integers(0, 99), at=st.integers(0, 2**16), change=st.integers(1, 255))
def test_no_changed_byte_gets_past_a_refusal(name: str, place: int, at: int, change: int) -> None:
    data = bytearray(SEEDS[name][place % len(SEEDS[name])])
    data[at % len(data)] ^= change
    TARGETS[name].run(bytes(data))


@given(name=NAMES, data=st.binary(max_size=600))
def test_any_bytes_are_refused_or_read(name: str, data: bytes) -> None:
    TARGETS[name].run(data)


#: What fuzzers seldom come upon: deep nesting, numbers of thousands of digits, lone surrogates.
HOSTILE = (
    b"[" * 5000,
    b'{"a":' * 5000,
    b"1" * 5000,
    b'{"tenant":' + b"1" * 5000 + b"}",
    b'{"tenant":"\\ud800","session":NaN}',
    b'{"op":[],"kind":{},"expires_unix_s":1e400}',
)


@pytest.mark.parametrize("name", ["json", "sealed", "tickets", "messages"])
@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_json_is_refused(name: str, data: bytes) -> None:
    for mode in range(2):
        TARGETS[name].run(bytes([mode]) + data)
    no_sections = bytes(5)
    TARGETS["sealed"].run(b"\2" + no_sections + data)
