"""FP8 against a plain reference: nearest code of a block with the least scale that fits."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.store import fp8, fp8kernels
from sessiond.store.codecs import LOSSY, Codec, Coder, payload_bound_bytes
from sessiond.store.fp8kernels import BLOCK_ITEMS, Kernels
from sessiond.testing.snapshots import as_stored, bf16_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = {Codec.FP8_BFLOAT16: fp8.BFLOAT16, Codec.FP8_FLOAT16: fp8.FLOAT16}
EACH = pytest.mark.parametrize("codec", list(NUMBERS))
#: What E4M3 has, without a sign.
VALUES = [m / 8 * 2.0**-6 for m in range(8)] + [
    (1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)
][:-1]
#: Numbers of a block are alike in real KV; here they are of any sizes, of one, and tiny.
SIZES = st.one_of(st.just((0, 2**15 - 1)), st.tuples(st.integers(0, 2**15 - 600), st.just(599)))


#: Numba comes with vLLM.
KERNELS = (fp8kernels.numpy_kernels(), fp8kernels.kernels())


@st.composite
def finite_items(draw: st.DrawFn, number: fp8.Number) -> npt.NDArray[np.uint16]:
    """Draw finite numbers, as their 16 bits."""
    least, span = draw(SIZES)
    sizes = draw(
        st.lists(st.integers(least, min(2**15 - 1, least + span)), min_size=1, max_size=80)
    )
    signs = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    items = np.array(sizes, np.uint16) | (np.array(signs, np.uint16) << 15)
    floats = number.floats(items.view(np.uint8))
    return np.where(np.isfinite(floats), items, 0).astype(np.uint16)


def worked(kernels: Kernels, number: fp8.Number, items: npt.NDArray[np.uint16]) -> list[bytes]:
    """Return codes, scales and decoded bytes."""
    codes = np.empty(len(items), np.uint8)
    scales = np.empty(fp8.blocks_of(len(items)), np.uint8)
    floats = number.floats(items.view(np.uint8))
    kernels.encode(floats, codes, scales, number.least_power, number.largest_power)
    out = np.empty(2 * len(items), np.uint8)
    kernels.decode(codes, scales, number.table, out)
    return [codes.tobytes(), scales.tobytes(), out.tobytes()]


def nearest(size: float, power: int, largest: float) -> list[float]:
    """Return the values that a number without its sign may become: one, or two at a tie."""
    there = [math.ldexp(value, power) for value in VALUES if math.ldexp(value, power) <= largest]
    least = min(abs(size - value) for value in there)
    return [value for value in there if abs(size - value) == least]


def reference(number: fp8.Number, floats: Sequence[float]) -> list[list[float]]:
    """Return what each number of one block may become."""
    most = max(map(abs, floats))
    powers = range(number.least_power, number.largest_power + 1)
    power = next((one for one in powers if most <= math.ldexp(448, one)), number.largest_power)
    highest = 448 if power < number.largest_power else 240
    return [nearest(abs(one), power, math.ldexp(highest, power)) for one in floats]


@EACH
@given(data=st.data())
def test_each_number_becomes_the_nearest_that_its_block_has(
    codec: Codec, data: st.DataObject
) -> None:
    number = NUMBERS[codec]
    items = data.draw(finite_items(number))
    (codes, scales, out), other = (worked(one, number, items) for one in KERNELS)
    assert [codes, scales, out] == other
    floats = number.floats(items.view(np.uint8)).tolist()
    decoded = number.floats(np.frombuffer(out, np.uint8)).tolist()
    for start in range(0, len(floats), BLOCK_ITEMS):
        block = slice(start, start + BLOCK_ITEMS)
        for before, after, allowed in zip(
            floats[block], decoded[block], reference(number, floats[block]), strict=True
        ):
            assert abs(after) in allowed
            assert math.copysign(1, after) == math.copysign(1, before)


@EACH
@given(data=st.data())
def test_what_was_decoded_is_encoded_without_further_loss(
    codec: Codec, data: st.DataObject
) -> None:
    number = NUMBERS[codec]
    items = data.draw(finite_items(number))
    for kernels in KERNELS:
        once = worked(kernels, number, items)[2]
        assert worked(kernels, number, np.frombuffer(once, np.uint16))[2] == once


@EACH
def test_every_decoded_number_is_a_16_bit_float_exactly(codec: Codec) -> None:
    number = NUMBERS[codec]
    powers = range(number.least_power, number.largest_power + 1)
    table = number.table.reshape(256, 256)
    for power in powers:
        row = number.floats(table[power + fp8kernels.SCALE_BIAS].view(np.uint8))
        highest = 0x7E if power < number.largest_power else 0x77
        expected = [math.ldexp(value, power) for value in VALUES[: highest + 1]]
        assert row[: highest + 1].tolist() == expected
        assert row[0x80 : 0x81 + highest].tolist() == [-value for value in expected]
    assert np.isfinite(number.floats(number.table.view(np.uint8))).all()


def bits(*floats: float, codec: Codec) -> bytes:
    """Return numbers of a codec's kind as bytes, padded with ones so that it pays."""
    number = NUMBERS[codec]
    return number.items(np.array([*floats, *[1.0] * (96 - len(floats))], np.float32)).tobytes()


@EACH
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_chunks_with_what_is_no_number_are_stored_without_loss(codec: Codec, value: float) -> None:
    raw = bits(1.0625 + 2**-7, value, codec=codec)
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    used, _ = Coder().encode(codec, np.frombuffer(raw, np.uint8), payload)
    assert used not in LOSSY
    assert as_stored(codec, raw) == raw


@EACH
def test_zeros_keep_their_signs(codec: Codec) -> None:
    for raw in (bytes(256), bits(0.0, -0.0, codec=codec), bits(*[-0.0] * 96, codec=codec)):
        assert as_stored(codec, raw) == raw


@EACH
def test_the_largest_and_the_smallest_numbers_survive(codec: Codec) -> None:
    number = NUMBERS[codec]
    items = np.arange(2**15, dtype=np.uint16)
    finite = items[np.isfinite(number.floats(items.view(np.uint8)))]
    smallest, largest = number.floats(finite[[1, -1]].view(np.uint8)).tolist()
    tiny = number.floats(
        np.frombuffer(as_stored(codec, bits(*[smallest] * 96, codec=codec)), np.uint8)
    )
    assert tiny.tolist() == [smallest] * 96
    huge = number.floats(np.frombuffer(as_stored(codec, bits(largest, codec=codec)), np.uint8))
    assert 0.9 * largest < huge[0] <= largest


def test_real_kv_loses_what_a_mantissa_of_three_bits_must() -> None:
    raw = bf16_bytes(5, 1 << 17)
    before = fp8.BFLOAT16.floats(np.frombuffer(raw, np.uint8)).astype(np.float64)
    stored = as_stored(Codec.FP8_BFLOAT16, raw)
    after = fp8.BFLOAT16.floats(np.frombuffer(stored, np.uint8)).astype(np.float64)
    rms = math.sqrt(float(np.square(before - after).sum() / np.square(before).sum()))
    assert 0.02 < rms < 0.03
    large = np.abs(before) > np.abs(before).max() / 2**13
    assert (np.abs(before - after)[large] <= np.abs(before)[large] / 16).all()


@EACH
def test_a_payload_is_less_than_half(codec: Codec) -> None:
    raw = np.frombuffer(
        bits(*np.random.default_rng(1).standard_normal(9000), codec=codec), np.uint8
    )
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    used, stored = Coder().encode(codec, raw, payload)
    assert used is codec
    assert stored < len(raw) / 2


def test_the_bytes_of_a_payload_never_change() -> None:
    floats = [448.0, 1.0, -1.0, 0.0, 1.0625, 1.1875, 17.0, 0.001] * 8
    raw = fp8.BFLOAT16.items(np.array(floats, np.float32)).tobytes()
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    used, stored = Coder().encode(Codec.FP8_BFLOAT16, np.frombuffer(raw, np.uint8), payload)
    plane = bytes([0x7E, 0x38, 0xB8, 0x00, 0x38, 0x3A, 0x58, 0x01]) * 8
    assert used is Codec.FP8_BFLOAT16
    decoded = Coder().decode(used, payload[:stored], len(raw))
    out = np.empty(len(raw), np.uint8)
    decoded.copy_to(out)
    assert fp8.BFLOAT16.floats(out)[:8].tolist() == [448, 1, -1, 0, 1, 1.25, 16, 2**-9]
    header = payload[:32].tobytes()
    assert header[:16] == (stored - 34).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert header[16:] == bytes([1, 0]) + bytes(14)
    assert payload[stored - 2 : stored].tobytes() == bytes([127, 127])
    codes = np.empty(64, np.uint8)
    assert fp8.encode(fp8.BFLOAT16, np.frombuffer(raw, np.uint8), codes, np.empty(2, np.uint8))
    assert codes.tobytes() == plane


def test_numpy_serves_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert fp8kernels.kernels().name == "numba"  # decided before
    assert fp8kernels.kernels.__wrapped__().name == "numpy"


def test_a_destination_at_an_odd_address_is_filled_like_any_other() -> None:
    raw = bf16_bytes(4, 1 << 12)
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    coder = Coder()
    used, stored = coder.encode(Codec.FP8_BFLOAT16, np.frombuffer(raw, np.uint8), payload)
    out = np.zeros(len(raw) + 1, np.uint8)[1:]
    coder.decode(used, payload[:stored], len(raw)).copy_to(out)
    assert out.tobytes() == as_stored(used, raw)
