from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.domain.engines import EngineInfo, ServedAdapter, SharedFile
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.ids import EngineId
from sessiond.store.store import Store
from sessiond.testing.files import flip_byte
from sessiond.testing.snapshots import a_fingerprint, a_key_ring

INFO = EngineInfo(
    engine_id=EngineId("a" * 32),
    url="http://127.0.0.1:8000",
    model="smol",
    pid=1,
    started_unix_s=1.0,
    heartbeat_unix_s=2.0,
    fingerprint=a_fingerprint(),
    chunk_tokens=128,
    chunk_bytes=2_949_120,
    ram_tier_chunks=100,
    max_model_tokens=8192,
    vllm_version="0.32.0",
)


def files(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "engines").iterdir())


def test_an_engine_lives_until_it_is_closed(store: Store) -> None:
    with store.publish_engine(INFO) as file:
        assert store.live_engines() == [INFO]
        assert store.engine_is_live(INFO.engine_id)
        adapters = (ServedAdapter("poet", digest="d"), ServedAdapter("scribe", unproven="new"))
        later = replace(INFO, heartbeat_unix_s=3.0, tier_off="reset", adapters=adapters)
        file.update(later)
        assert store.live_engines() == [later]
        assert store.remove_dead_engines() == []
    assert store.live_engines() == []
    assert not store.engine_is_live(INFO.engine_id)
    assert files(store) == []
    file.close()  # a second time does nothing


CHILD = """
import os, sys
from pathlib import Path
from sessiond.domain.engines import EngineInfo
from sessiond.domain.ids import EngineId
from sessiond.store.store import Store
from sessiond.testing.snapshots import a_fingerprint, a_key_ring
store = Store.open(Path(sys.argv[1]), a_key_ring())
info = EngineInfo(
    EngineId("b" * 32), "", "m", os.getpid(), 1.0, 1.0, a_fingerprint(), 1, 1, 1, 1, "0.32.0"
)
file = store.publish_engine(info)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_lock_and_not_the_file_proves_life(store: Store) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert [info.pid for info in store.live_engines()] == [child.pid]
        child.kill()
        child.wait()
    assert len(files(store)) == 2  # it had no time to tidy up
    assert store.live_engines() == []
    assert store.remove_dead_engines() == ["b" * 32]
    assert files(store) == []


def test_engines_that_cannot_be_read_are_left_out(store: Store) -> None:
    other = Store(store._tree, a_key_ring(9))
    with (
        store.publish_engine(INFO),
        other.publish_engine(replace(INFO, engine_id=EngineId("c"))),
        store.publish_engine(replace(INFO, engine_id=EngineId("d"))),
    ):
        flip_byte(store.root / "engines" / "d.json", 100)
        assert store.live_engines() == [INFO]


def test_a_file_without_a_lock_is_dead(store: Store) -> None:
    (store.root / "engines" / "x.json").write_bytes(b"{}")
    (store.root / "engines" / "y.lock").write_bytes(b"")
    assert not store.engine_is_live("x")
    assert store.remove_dead_engines() == ["x", "y"]
    assert files(store) == []


@pytest.mark.parametrize("engine_id", ["", "../x", "a/b", "a\0", "-a", "x" * 65, "ä"])
def test_ids_that_are_no_file_names(store: Store, engine_id: str) -> None:
    with pytest.raises(ConfigurationError):
        store.publish_engine(replace(INFO, engine_id=EngineId(engine_id)))
    assert not store.engine_is_live(engine_id)


def test_an_engine_never_changes_its_id(store: Store) -> None:
    with store.publish_engine(INFO) as file, pytest.raises(ConfigurationError):
        file.update(replace(INFO, engine_id=EngineId("z")))


def test_asking_and_tidying_never_hurts_an_engine_that_starts(store: Store) -> None:
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            store.remove_dead_engines()
            store.live_engines()

    threads = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with store.publish_engine(INFO):
                assert store.engine_is_live(INFO.engine_id)
                assert store.live_engines() == [INFO]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_only_record_of_shared_memory_may_be_kept(store: Store) -> None:
    sharing = replace(INFO, engine_id=EngineId("c"), shared_files=(SharedFile("x", 7),))
    with store.publish_engine(INFO), store.publish_engine(sharing):
        left = {path.name: path.read_bytes() for path in (store.root / "engines").iterdir()}
    for name, data in left.items():
        (store.root / "engines" / name).write_bytes(data)  # as after SIGKILL
    assert store.remove_dead_engines(keep_sharing=True) == [INFO.engine_id]
    assert store.dead_engines() == [sharing]
    assert store.remove_dead_engines() == ["c"]
    assert files(store) == []
