"""An engine that stores KV with loss: what it writes, what it loads, and who else may."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessiond.connector.mover.lossy import lossy_codec
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import SessionId
from sessiond.store.codecs import Codec
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import (
    CHUNK_TOKENS,
    TENANT,
    a_fingerprint,
    as_stored,
    bf16_bytes,
    some_tokens,
)

HEAD = some_tokens(3 * CHUNK_TOKENS + 5)
LONGER_HEAD = some_tokens(5 * CHUNK_TOKENS + 5)
SLOTS = [(0, 12), (1, 10), (2, 11)]
SESSION = "s"


@contextmanager
def a_rig(folder: Path, lossy: str = "fp8", **hello: Any) -> Iterator[MoverRig]:  # noqa: ANN401 - any field
    made = replace(make_hello(folder, a_fingerprint(lossy=lossy)), **hello)
    rig = MoverRig(folder, made, in_process=True)
    try:
        yield rig
    finally:
        rig.close()


def loaded(rig: MoverRig) -> list[bytes]:
    opened = rig.open_load(SESSION, HEAD)
    assert (opened.chunks, opened.causes) == ([0, 1, 2], [])
    assert rig.load(opened.plan_id, SLOTS).failed == []
    return [rig.slot(slot) for _, slot in SLOTS]


def test_kv_is_stored_with_a_loss_that_is_told(tmp_path: Path) -> None:
    with a_rig(tmp_path, codec="auto", half_bytes=1000) as rig:
        told = rig.suspend(SESSION, HEAD).snapshot
        assert told is not None
        assert told["lossy"]["way"] == "fp8"
        assert set(told["lossy"]["errors"]) == {"k", "v"}
        assert all(0.02 < error["rms"] < 0.03 for error in told["lossy"]["errors"].values())
        assert told["stored_bytes"] < told["raw_bytes"] / 2
        stored = [as_stored(Codec.FP8_BFLOAT16, bf16_bytes(seed)) for seed in range(3)]
        assert loaded(rig) == stored
        assert rig.store.verify().is_clean


def test_a_second_suspend_shares_what_was_lossy_and_stays_marked(tmp_path: Path) -> None:
    with a_rig(tmp_path) as rig:
        first = rig.suspend(SESSION, HEAD).snapshot
        second = rig.suspend(SESSION, LONGER_HEAD, generation=2).snapshot
        assert first is not None
        assert second is not None
        assert second["shared_bytes"] == first["stored_bytes"]
        assert second["lossy"]["errors"]["kv"]["rms"] > 0
        manifest = rig.store.read_manifest(TENANT, SessionId(SESSION), 2)
        assert all(chunk.loss for chunk in manifest.chunks)


def test_chunks_of_a_version_that_did_not_tell_k_and_v_apart_are_shared(tmp_path: Path) -> None:
    with a_rig(tmp_path) as rig:
        assert rig.suspend(SESSION, HEAD).snapshot is not None
    with a_rig(tmp_path, half_bytes=1000) as rig:
        second = rig.suspend(SESSION, LONGER_HEAD, generation=2).snapshot
        assert second is not None
        assert second["shared_bytes"] > 0
        assert second["lossy"]["errors"].keys() == {"kv"}
        assert rig.store.verify().is_clean


@pytest.mark.parametrize(("stored", "live"), [("fp8", ""), ("", "fp8")])
def test_no_other_engine_loads_it_and_it_loads_no_other(
    tmp_path: Path, stored: str, live: str
) -> None:
    with a_rig(tmp_path, stored) as rig:
        assert rig.suspend(SESSION, HEAD).snapshot is not None
    with a_rig(tmp_path, live) as rig:
        opened = rig.open_load(SESSION, HEAD)
        assert opened.chunks == []
        (cause,) = opened.causes
        assert (cause["reason"], cause["detail"]) == ("lossy_mismatch", "lossy")
        assert (cause["stored"], cause["live"]) == (stored or None, live or None)


@pytest.mark.parametrize(("stored", "live"), [("fp8", ""), ("", "fp8")])
def test_lossy_and_lossless_chunks_are_never_shared(tmp_path: Path, stored: str, live: str) -> None:
    with a_rig(tmp_path, stored) as rig:
        assert rig.suspend(SESSION, HEAD).snapshot is not None
    with a_rig(tmp_path, live) as rig:
        assert rig.open_suspend(SESSION, LONGER_HEAD, generation=2).durable_chunks == []
        told = rig.suspend(SESSION, LONGER_HEAD, generation=3).snapshot
        assert told is not None
        assert told["shared_bytes"] == 0
        assert bool(told["lossy"]) == bool(live)
        old, new = (rig.store.read_manifest(TENANT, SessionId(SESSION), one) for one in (1, 3))
        assert not old.segment_ids & new.segment_ids


@pytest.mark.parametrize(
    ("numbers", "codec"),
    [
        ("bfloat16", Codec.FP8_BFLOAT16),
        ("float16", Codec.FP8_FLOAT16),
        ("half", Codec.FP8_FLOAT16),
    ],
)
def test_the_codec_is_that_of_the_numbers(numbers: str, codec: Codec) -> None:
    assert lossy_codec(Fingerprint({"kv_dtype": numbers})) is None
    assert lossy_codec(Fingerprint({"kv_dtype": numbers, "lossy": "fp8"})) is codec


@pytest.mark.parametrize("numbers", ["float32", "fp8", "fp8_e4m3", "uint8"])
def test_only_16_bit_floats_can_be_stored_with_loss(numbers: str) -> None:
    with pytest.raises(ConfigurationError, match=f"not of {numbers}"):
        lossy_codec(Fingerprint({"kv_dtype": numbers, "lossy": "fp8"}))
