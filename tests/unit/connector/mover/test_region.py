from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from sessiond.connector.mover import region

SIZE_BYTES = 8 << 20


def resident_shared_bytes() -> int:
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssShmem:")
    )
    return int(line.split()[1]) << 10


def test_all_pages_are_met_and_none_is_changed() -> None:
    fd = os.memfd_create("region")
    os.ftruncate(fd, SIZE_BYTES)
    with mmap.mmap(fd, SIZE_BYTES) as others:
        others[:] = os.urandom(SIZE_BYTES)
        with region.map_region(fd, SIZE_BYTES) as mapped:
            before = resident_shared_bytes()
            region.touch_in_background(mapped).join()
            assert resident_shared_bytes() - before >= SIZE_BYTES
            assert mapped[:] == others[:]


def test_an_old_kernel_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region, "_POPULATE_WRITE", 9999)
    with mmap.mmap(-1, SIZE_BYTES, mmap.MAP_SHARED) as mapped:
        region.touch_in_background(mapped).join()
        assert mapped[:4] == bytes(4)
