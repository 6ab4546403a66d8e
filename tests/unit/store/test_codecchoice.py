from __future__ import annotations

import numpy as np

from sessiond.store.codecchoice import CodecTrial, Speeds, choose_codec, try_codecs
from sessiond.store.codecs import Codec
from sessiond.testing.snapshots import bf16_bytes

SLOW = Speeds(read_bytes_s=1e6, write_bytes_s=1e6)
BF16 = memoryview(bf16_bytes(0, 3 << 20))


def test_trials_measure_every_codec_that_applies() -> None:
    trials = try_codecs(BF16)
    assert [trial.codec for trial in trials] == [Codec.RAW, Codec.PLANAR_ZSTD]
    assert trials[0].stored_share == 1
    assert 0.5 < trials[1].stored_share < 0.8
    assert all(trial.encode_bytes_s > 0 and trial.decode_bytes_s > 0 for trial in trials)


def test_the_codec_follows_the_device_and_the_data() -> None:
    noise = memoryview(np.random.default_rng(0).bytes(1 << 20))
    fast_reads = Speeds(read_bytes_s=1e15, write_bytes_s=1e6)
    fast_writes = Speeds(read_bytes_s=1e6, write_bytes_s=1e15, write_threads=1)
    assert choose_codec(BF16, speeds=SLOW) is Codec.PLANAR_ZSTD
    assert choose_codec(BF16, speeds=fast_reads) is Codec.RAW
    assert choose_codec(BF16, speeds=fast_writes) is Codec.RAW
    assert choose_codec(noise, speeds=SLOW) is Codec.RAW


def test_eight_bit_numbers_are_compressed_only_where_it_pays() -> None:
    noise = memoryview(np.random.default_rng(0).bytes(1 << 20))
    assert choose_codec(memoryview(bytes(1 << 16)), item_bytes=1, speeds=SLOW) is Codec.ZSTD
    assert choose_codec(noise, item_bytes=1, speeds=SLOW) is Codec.RAW


def test_the_sample_sees_the_whole_chunk() -> None:
    noise = np.random.default_rng(0).bytes(1 << 18)
    assert choose_codec(memoryview(noise), item_bytes=1, speeds=SLOW) is Codec.RAW
    mixed = memoryview(noise + bytes(3 << 20))
    assert choose_codec(mixed, item_bytes=1, speeds=SLOW) is Codec.ZSTD


def test_both_ways_take_as_long_as_their_slower_half() -> None:
    trial = CodecTrial(Codec.PLANAR_ZSTD, 0.5, 1e9, 2e9)
    assert trial.restore_s_per_byte(Speeds(read_bytes_s=1e9)) == 0.5e-9
    assert trial.restore_s_per_byte(Speeds(read_bytes_s=1e10)) == 0.25e-9
    assert trial.suspend_s_per_byte(Speeds(write_bytes_s=0.5e9)) == 1e-9
    assert trial.suspend_s_per_byte(Speeds(write_bytes_s=1e10, write_threads=1)) == 1e-9
