from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sessiond.domain.errors import RegistryUnavailableError
from sessiond.registry import Registry, upgrade
from sessiond.registry.schema import downgrade
from sessiond.testing.values import NOW_UNIX_S, a_session

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue


def test_a_switch_is_set_anew_and_cleared(registry: Registry) -> None:
    assert registry.read_switch("pause") is None
    assert not registry.clear_switch("pause")
    values: list[dict[str, JsonValue]] = [{}, {"reason": "é ☃", "until_unix_s": 1.5}, {"a": None}]
    for value in values:
        registry.set_switch("pause", value, NOW_UNIX_S)
        assert registry.read_switch("pause") == value
    assert registry.read_switch("another") is None
    assert registry.clear_switch("pause")
    assert registry.read_switch("pause") is None


def test_a_switch_is_seen_by_every_daemon_and_outlives_each(url: str) -> None:
    with closing(Registry.open(url)) as one, closing(Registry.open(url)) as other:
        one.set_switch("pause", {"reason": "backup"}, NOW_UNIX_S)
        assert other.read_switch("pause") == {"reason": "backup"}
    with closing(Registry.open(url)) as later:
        assert later.clear_switch("pause")


def test_several_may_set_it_at_once(registry: Registry) -> None:
    barrier = threading.Barrier(4)

    def put(number: int) -> None:
        barrier.wait()
        registry.set_switch("pause", {"by": number}, NOW_UNIX_S)

    for _ in range(5):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(put, range(4)))  # raises what a thread raised
        found = registry.read_switch("pause")
        assert found is not None
        assert found["by"] in range(4)
        assert registry.clear_switch("pause")


def test_on_the_way_down_switches_go_and_sessions_stay(url: str) -> None:
    session = a_session()
    with closing(Registry.open(url)) as registry:
        registry.create_session(session)
        registry.set_switch("pause", {}, NOW_UNIX_S)
    downgrade(url, "0002")
    with closing(Registry.open(url)) as registry, pytest.raises(RegistryUnavailableError):
        registry.read_switch("pause")
    upgrade(url)
    with closing(Registry.open(url)) as registry:
        assert registry.read_switch("pause") is None
        assert registry.get_session(session.tenant, session.session_id) == session
