from __future__ import annotations

import importlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessiond.domain.errors import StoreCorruptError
from sessiond.store import planes
from sessiond.store.codecs import LOSSY, Codec, Coder, Decoded, payload_bound_bytes, thread_coder
from sessiond.testing.snapshots import bf16_bytes

COMPRESSIBLE = st.integers(0, 2**32 - 1).map(lambda seed: bf16_bytes(seed, 1 << 12))
ANY_RAW = st.one_of(st.binary(min_size=1, max_size=5000), COMPRESSIBLE)


def as_array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def bytes_of(decoded: Decoded) -> bytes:
    """Return the bytes as they are copied; as they are checked they must be the same."""
    out = np.empty(len(decoded), np.uint8)
    decoded.copy_to(out)
    assert b"".join(piece.tobytes() for piece in decoded.pieces()) == out.tobytes()
    return out.tobytes()


def encode(codec: Codec, raw: bytes) -> tuple[Codec, npt.NDArray[np.uint8]]:
    payload = np.empty(payload_bound_bytes(len(raw)), np.uint8)
    used, stored = Coder().encode(codec, as_array(raw), payload)
    return used, payload[:stored]


@given(st.sampled_from([codec for codec in Codec if codec not in LOSSY]), ANY_RAW)
def test_every_other_codec_is_lossless_and_never_longer_than_raw(codec: Codec, raw: bytes) -> None:
    used, payload = encode(codec, raw)
    assert used in {codec, Codec.RAW}
    assert len(payload) <= len(raw)
    assert bytes_of(thread_coder().decode(used, payload, len(raw))) == raw


def test_planar_beats_zstd_on_bf16_and_gains_what_entropy_allows() -> None:
    raw = bf16_bytes(1, 1 << 21)  # several pieces
    assert bytes_of(thread_coder().decode(*encode(Codec.PLANAR_ZSTD, raw), len(raw))) == raw
    planar, plain = encode(Codec.PLANAR_ZSTD, raw), encode(Codec.ZSTD, raw)
    assert planar[0] is Codec.PLANAR_ZSTD
    assert len(planar[1]) < len(plain[1])
    assert len(planar[1]) / len(raw) < 0.70


def test_random_bytes_are_stored_raw() -> None:
    raw = np.random.default_rng(0).bytes(1 << 16)
    assert encode(Codec.PLANAR_ZSTD, raw)[0] is Codec.RAW
    assert encode(Codec.ZSTD, raw)[0] is Codec.RAW


def test_both_planes_may_compress() -> None:
    used, payload = encode(Codec.PLANAR_ZSTD, bytes(1 << 16))
    assert used is Codec.PLANAR_ZSTD
    assert len(payload) < 1 << 10


def test_an_odd_length_has_no_planes() -> None:
    assert encode(Codec.PLANAR_ZSTD, bytes(4097))[0] is Codec.RAW


@settings(max_examples=300)
@given(st.sampled_from([*Codec, 5, 2**16 - 1]), st.binary(max_size=300), st.integers(1, 300))
def test_foreign_payloads_give_bytes_of_the_right_length_or_a_refusal(
    codec: int, payload: bytes, raw_bytes: int
) -> None:
    try:
        raw = bytes_of(thread_coder().decode(codec, as_array(payload), raw_bytes))
    except StoreCorruptError:
        return
    assert len(raw) == raw_bytes


@settings(max_examples=300)
@given(COMPRESSIBLE, st.sampled_from([*Codec][1:]), st.data())
def test_a_damaged_payload_never_reaches_beyond_its_buffers(
    raw: bytes, codec: Codec, data: st.DataObject
) -> None:
    used, payload = encode(codec, raw)
    damaged = bytearray(payload.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    cut = damaged[: data.draw(st.integers(0, len(damaged)))]
    for candidate in (bytes(damaged), bytes(cut)):
        try:
            decoded = thread_coder().decode(used, as_array(candidate), len(raw))
            assert len(bytes_of(decoded)) == len(raw)
        except StoreCorruptError:
            continue


def test_a_frame_that_claims_a_terabyte_allocates_nothing() -> None:
    # A zstd frame header with an 8-byte content size of 2^40, and nothing behind it.
    bomb = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(StoreCorruptError):
        thread_coder().decode(Codec.ZSTD, as_array(bomb), 4096)


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_kernels_agree(kernels: str) -> None:
    if kernels == "numba":
        chosen = planes.compiled_kernels(pytest.importorskip("numba"))
    else:
        chosen = planes.numpy_kernels()
    raw = np.random.default_rng(3).integers(0, 256, 10_006, np.uint8)
    low, high = np.empty(5003, np.uint8), np.empty(5003, np.uint8)
    chosen.split(raw, low, high)
    assert np.array_equal(low, raw[0::2])
    assert np.array_equal(high, raw[1::2])
    joined = np.empty_like(raw)
    chosen.join(low, high, joined)
    assert np.array_equal(joined, raw)


def test_a_source_at_an_odd_address_is_split_like_any_other() -> None:
    raw = np.random.default_rng(3).integers(0, 256, 1001, np.uint8)[1:]
    low, high = np.empty(500, np.uint8), np.empty(500, np.uint8)
    planes.split(raw, low, high)
    assert np.array_equal(low, raw[0::2])


def test_numpy_serves_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    planes.kernels.cache_clear()
    try:
        assert planes.kernels().name == "numpy"
    finally:
        planes.kernels.cache_clear()


def test_a_destination_at_an_odd_address_is_filled_like_any_other() -> None:
    raw = bf16_bytes(4, 1 << 16)
    used, payload = encode(Codec.PLANAR_ZSTD, raw)
    out = np.zeros(len(raw) + 1, np.uint8)[1:]
    thread_coder().decode(used, payload, len(raw)).copy_to(out)
    assert out.tobytes() == raw
