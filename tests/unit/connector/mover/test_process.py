"""The mover as a process of its own: how it lives, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.moverwatch import JobDone, MoverWatch
from sessiond.domain.ids import SessionId
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import CHUNK_TOKENS, TENANT, some_tokens

HEAD = some_tokens(2 * CHUNK_TOKENS + 1)
_PARENT = """
import sys, time
from pathlib import Path
from sessiond.testing.mover_rig import MoverRig, make_hello
from sessiond.testing.snapshots import some_tokens
folder = Path(sys.argv[1])
rig = MoverRig(folder, make_hello(folder), in_process=False)
rig.open_suspend("s", some_tokens(40))
print(rig.link.pid, flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def real(folder: Path) -> Iterator[tuple[MoverRig, MoverClient]]:
    """A real mover that has answered something."""
    rig = MoverRig(folder, make_hello(folder), in_process=False)
    assert isinstance(rig.link, MoverClient)
    try:
        rig.open_load("s", HEAD)
        yield rig, rig.link
    finally:
        rig.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MoverClient]:
    """One that is only looked at."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})  # as vLLM binds its threads
    try:
        with real(tmp_path_factory.mktemp("shared")) as (_, client):
            os.sched_setaffinity(0, own)
            yield client
    finally:
        os.sched_setaffinity(0, own)


def test_the_first_answer_says_that_it_has_begun_to_work(tmp_path: Path) -> None:
    rig = MoverRig(tmp_path, make_hello(tmp_path), in_process=False)
    client = rig.link
    assert isinstance(client, MoverClient)
    answers: list[protocol.Message] = []

    def has_answered() -> bool:
        answers.extend(client.poll())
        return bool(answers)

    try:
        until(has_answered, "it answers nothing")
    finally:
        rig.close()
    assert answers == [protocol.Ready()]


def test_it_may_use_every_core(shared: MoverClient) -> None:
    assert os.sched_getaffinity(shared.pid) == os.sched_getaffinity(0)


def test_it_is_lost_first_when_memory_is_short(shared: MoverClient) -> None:
    def score(pid: int | str) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    assert score(shared.pid) == min(1000, score("self") + 500)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_its_engine_not_with_its_group(
    shared: MoverClient, number: signal.Signals
) -> None:
    os.kill(shared.pid, number)
    time.sleep(0.05)
    assert is_running(shared.pid)
    assert shared.is_connected()


def test_it_inherits_one_socket(shared: MoverClient) -> None:
    links = []
    for path in Path(f"/proc/{shared.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(path.readlink()))
    assert len([link for link in links if link.startswith("socket:")]) == 1


def test_it_ends_when_its_socket_closes(tmp_path: Path) -> None:
    with real(tmp_path) as (_, client):
        process = client._process
        client.close()
    assert process.returncode == 0


def test_closing_waits_for_no_mover_that_hangs(tmp_path: Path) -> None:
    with real(tmp_path) as (_, client):
        process = client._process
        os.kill(client.pid, signal.SIGSTOP)
        client.close(wait_s=0.2)
    assert process.returncode == -signal.SIGKILL


def test_it_ends_when_its_engine_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_running(pid), "the mover outlives its engine")


def test_a_killed_mover_is_noticed_and_leaves_no_file_open(tmp_path: Path) -> None:
    before = open_files()
    with real(tmp_path) as (_, client):
        os.kill(client.pid, signal.SIGKILL)
        until(lambda: not client.is_connected(), "its end is not noticed")
        client.kill()
        until(client.is_gone, "it does not count as gone")
        client.send(protocol.ClosePlan(1))  # lost, not an error
    assert open_files() == before


@pytest.mark.parametrize("message", [protocol.Load(1, 77, [[0, 0]]), protocol.StoreDone(1, [])])
def test_a_message_that_it_cannot_handle_ends_it(tmp_path: Path, message: protocol.Message) -> None:
    with real(tmp_path) as (rig, client):
        rig.send(message)
        until(lambda: not client.is_connected(), "it goes on")
        until(client.is_gone, "it does not end")
        assert client._process.wait(60) == 70  # it counts as gone before it is


@pytest.mark.parametrize("engine_ends", [True, False])
def test_a_mover_that_wakes_up_late_commits_only_for_a_living_engine(
    tmp_path: Path, *, engine_ends: bool
) -> None:
    with real(tmp_path) as (rig, client):
        opened = rig.open_suspend("s", HEAD)
        rig.fill(0, seed=0)
        rig.store_chunks(opened.plan_id, [(0, 0)])
        os.kill(client.pid, signal.SIGSTOP)
        rig.send(protocol.FinishSuspend(opened.plan_id, commit=True))
        if engine_ends:
            rig.engine.close()
        os.kill(client.pid, signal.SIGCONT)
        finished = rig.wait_for(protocol.SuspendFinished)
        assert (finished.snapshot is None) == engine_ends
        assert rig.store.generations(TENANT, SessionId("s")) == ([] if engine_ends else [1])


def test_without_its_key_file_it_ends(tmp_path: Path) -> None:
    hello = replace(make_hello(tmp_path), key_file=str(tmp_path / "nothing"))
    with os.fdopen(os.memfd_create("region"), "wb") as region:
        region.truncate(hello.region_chunks * hello.chunk_bytes)
        client = MoverClient(hello, region.fileno())
        until(lambda: not client.is_connected(), "it goes on")
        client.close()


def test_a_start_that_fails_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    before = open_files()
    with pytest.raises(FileNotFoundError):
        MoverClient(make_hello(tmp_path), 0)
    assert open_files() == before


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[Callable[[], MoverClient], list[MoverClient]]]:
    """What starts movers, and all that it has started; none outlives the test, however it ends."""
    hello, clients = make_hello(tmp_path), list[MoverClient]()
    with os.fdopen(os.memfd_create("region"), "wb") as region:
        region.truncate(hello.region_chunks * hello.chunk_bytes)

        def start() -> MoverClient:
            clients.append(MoverClient(hello, region.fileno()))
            return clients[-1]

        yield start, clients
        for client in clients:
            client.kill()
            client.close()


def test_a_mover_that_hangs_is_killed_and_replaced(
    started: tuple[Callable[[], MoverClient], list[MoverClient]],
) -> None:
    start, clients = started
    watch = MoverWatch(start, 0.3, lambda: None, lambda: None)

    def has_begun() -> bool:
        watch.poll()
        return not watch.awaits_answer

    until(has_begun, "it does not begin to work")
    os.kill(clients[0].pid, signal.SIGSTOP)
    watch.begin(1, frozenset({0}))
    watch.ask(protocol.Load(1, 2, [[0, 0]]))
    done: list[JobDone] = []

    def ended() -> bool:
        watch.poll()
        done.extend(watch.take_done())
        return bool(done) and len(clients) == 2

    until(ended, "it is not replaced")
    assert not is_running(clients[0].pid)
    assert clients[1].is_connected()
    assert done == [JobDone(1, frozenset(), all_good=False)]
