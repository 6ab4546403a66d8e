"""What is done in the event loop, and what in a thread."""

from __future__ import annotations

import threading
import time

import pytest

from sessiond.service import blocking
from sessiond.service.blocking import Blocking

pytestmark = pytest.mark.anyio

HERE = threading.get_ident


async def test_a_look_is_taken_at_once() -> None:
    runner = Blocking(1, brief=True)
    assert await runner.briefly(HERE) == HERE()
    assert await runner(HERE) != HERE()


async def test_nothing_is_done_at_once_where_a_network_may_be_waited_for() -> None:
    assert await Blocking(1).briefly(HERE) != HERE()


async def test_what_is_slow_again_and_again_goes_to_threads_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for detour_s, goes in ((3600.0, True), (0.0, False)):
        monkeypatch.setattr(blocking, "_DETOUR_S", detour_s)
        runner = Blocking(1, brief=True)
        for _ in range(blocking._PATIENCE):
            await runner.briefly(time.sleep, 2 * blocking._BRIEF_S)
        assert (await runner.briefly(HERE) != HERE()) is goes


async def test_what_was_far_too_slow_once_goes_to_threads_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocking, "_FAR_TOO_LONG_S", blocking._BRIEF_S / 2)
    monkeypatch.setattr(blocking, "_DETOUR_S", 3600.0)
    runner = Blocking(1, brief=True)
    await runner.briefly(time.sleep, blocking._BRIEF_S)
    assert await runner.briefly(HERE) != HERE()


async def test_an_error_passes_through() -> None:
    def fails() -> None:
        raise KeyError("x")

    for brief in (True, False):
        with pytest.raises(KeyError):
            await Blocking(1, brief=brief).briefly(fails)
