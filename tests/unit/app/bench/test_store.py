from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sessiond.app.bench.kv import Bytes
from sessiond.app.bench.region import Region, Window, WrongBytesError
from sessiond.app.bench.report import show_store
from sessiond.app.bench.store import StoreOptions, measure
from sessiond.domain.errors import ConfigurationError
from sessiond.testing.snapshots import bf16_bytes

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class MadeUpKv:
    """As compressible as real KV, and quick to make."""

    chunk_bytes: int = CHUNK_BYTES
    description: str = "made up"
    distinct_chunks: int = 3

    def read(self, index: int, out: Bytes) -> None:
        out[:] = np.frombuffer(bf16_bytes(index % self.distinct_chunks, self.chunk_bytes), np.uint8)


OPTIONS = StoreOptions(
    Path(), size_bytes=12 * CHUNK_BYTES, window_bytes=8 * CHUNK_BYTES, rounds=2,
    codecs=("raw", "planar-zstd"), drop_page_cache=False,
)  # fmt: skip


def test_the_whole_benchmark_on_a_few_bytes(tmp_path: Path) -> None:
    said: list[str] = []
    report = measure(MadeUpKv(), replace(OPTIONS, folder=tmp_path), said.append)
    assert set(report["ratios"]) == {
        "restore_raw_vs_device_read",
        "restore_compressed_vs_device_read",
        "restore_vs_vllm_fs",
        "stored_vs_raw",
        "suspend_raw_vs_device_write",
        "suspend_compressed_vs_device_write",
    }
    assert all(ratio > 0 for ratio in report["ratios"].values())
    assert 0.5 < report["ratios"]["stored_vs_raw"] < 0.8
    assert report["data"]["raw_bytes"] == 12 * CHUNK_BYTES
    assert {len(rate["samples_bytes_s"]) for rate in report["bytes_s"].values()} == {2}
    assert json.loads(json.dumps(report))["kind"] == "store"
    show_store(report, Console(quiet=True))
    assert len(said) == 2
    assert list(tmp_path.iterdir()) == []


def test_it_cleans_up_when_it_is_interrupted(tmp_path: Path) -> None:
    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    options = replace(OPTIONS, folder=tmp_path, codecs=("raw",))
    with pytest.raises(KeyboardInterrupt):
        measure(MadeUpKv(), options, interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"size_bytes": 10},
        {"rounds": 0},
        {"codecs": ("zip",)},
        {"size_bytes": 1 << 60, "window_bytes": 1 << 59},
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    options = replace(OPTIONS, folder=tmp_path, **wrong)
    with pytest.raises(ConfigurationError):
        measure(MadeUpKv(), options, print)
    assert list(tmp_path.iterdir()) == []


def test_wrong_bytes_are_noticed() -> None:
    window = Window(0, 0, (1, 0))
    with Region(2, CHUNK_BYTES) as region:
        region.fill(window, MadeUpKv())
        region.check(window, "nobody")
        region.slot(1)[:], region.slot(0)[:] = region.slot(0).copy(), region.slot(1).copy()
        with pytest.raises(WrongBytesError, match="somebody"):
            region.check(window, "somebody")
