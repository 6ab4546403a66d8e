"""Files of what was measured: whole, bounded, and never trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessiond.domain.canonical import JsonValue
from sessiond.domain.errors import StoreCorruptError, StoreError
from sessiond.store.calibrations import MAX_FILE_BYTES, MOST_FILES
from sessiond.store.devicerate import read_rate
from sessiond.store.reading import RUN_BYTES
from sessiond.store.store import Store

KIND = "ab" * 32


def write(store: Store, kind: str, value: dict[str, JsonValue]) -> None:
    store.calibrations.revise(kind, lambda _: value)


def test_what_was_written_last_is_read(store: Store) -> None:
    assert store.calibrations.read(KIND) is None
    write(store, KIND, {"version": 1, "loads": [1.5]})
    write(store, KIND, {"version": 1, "loads": []})
    assert store.calibrations.read(KIND) == {"version": 1, "loads": []}
    (path,) = (store.root / "calibration").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"a": NaN}', b"{"])
def test_a_damaged_one_is_named(store: Store, data: bytes) -> None:
    write(store, KIND, {})
    (store.root / "calibration" / f"{KIND}.json").write_bytes(data)
    with pytest.raises(StoreCorruptError):
        store.calibrations.read(KIND)
    store.calibrations.revise(KIND, lambda found: {"is_new": found is None})
    assert store.calibrations.read(KIND) == {"is_new": True}


def test_writers_take_turns(store: Store) -> None:
    other = Store.open(store.root, store.keys)

    def add(number: int) -> None:
        def more(found: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
            return {**(found or {}), str(number): True}

        (store if number % 2 else other).calibrations.revise(KIND, more)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(40)))
    found = store.calibrations.read(KIND)
    assert found == {str(number): True for number in range(40)}


def test_one_that_is_too_large_leaves_the_old_one(store: Store) -> None:
    write(store, KIND, {"old": True})
    with pytest.raises(StoreError):
        write(store, KIND, {"new": "x" * MAX_FILE_BYTES})
    assert store.calibrations.read(KIND) == {"old": True}


def test_the_files_that_were_written_last_stay(store: Store) -> None:
    kinds = [f"{number:064x}" for number in range(MOST_FILES + 2)]
    for age, kind in enumerate(kinds[:-1]):
        write(store, kind, {})
        os.utime(store.root / "calibration" / f"{kind}.json", (1000 + age, 1000 + age))
    (store.root / "calibration" / "notes.txt").write_text("somebody's")
    write(store, kinds[-1], {})
    left = {path.stem for path in (store.root / "calibration").glob("*.json")}
    assert left == set(kinds[2:])
    assert (store.root / "calibration" / "notes.txt").exists()


def test_the_device_is_measured_and_nothing_is_left(store: Store) -> None:
    rate = read_rate(store._tree, 2 * RUN_BYTES)
    assert 1e5 < rate < 1e12
    assert list((store.root / "tmp").iterdir()) == []
