from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessiond.connector import guard
from sessiond.connector.guard import failures, guarded, inject


class Room:
    @guarded("fallback")
    def divide(self, one: int, other: int) -> float:
        """Say what it does."""
        return one / other

    @guarded(None)
    def leave(self) -> None:
        raise SystemExit


DIVIDE = "Room.divide"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "_injected", set())
    failures.clear()
    yield
    failures.clear()


def test_what_works_is_passed_on() -> None:
    assert Room().divide(6, other=3) == 2
    assert not failures


def test_what_raises_gives_the_fallback() -> None:
    assert Room().divide(1, 0) == "fallback"


def test_failures_are_counted_by_name() -> None:
    for _ in range(3):
        Room().divide(1, 0)
    assert failures == {DIVIDE: 3}


def test_failures_are_logged_with_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "vllm.sessiond.guard"):
        Room().divide(1, 0)
    assert f"{DIVIDE} failed (1 times)" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_wrong_arguments_give_the_fallback_too() -> None:
    assert Room().divide(1) == "fallback"  # type: ignore[call-arg]


def test_an_exit_is_no_failure() -> None:
    with pytest.raises(SystemExit):
        Room().leave()


def test_a_fault_can_be_injected() -> None:
    inject([DIVIDE])
    assert Room().divide(6, 3) == "fallback"


def test_an_injected_fault_hits_no_other_function() -> None:
    inject(["Room.other", "divide"])
    assert Room().divide(6, 3) == 2


def test_a_file_tells_which_faults_are_injected_now(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(f"other {DIVIDE}\n")
    inject([f"@{tmp_path / 'faults'}"])
    assert Room().divide(6, 3) == "fallback"
    (tmp_path / "faults").write_text("other")
    assert Room().divide(6, 3) == 2


def test_the_wrapped_function_keeps_its_name() -> None:
    assert (Room.divide.__name__, Room.divide.__doc__) == ("divide", "Say what it does.")
