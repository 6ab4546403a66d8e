from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from sessiond.api.models_turns import MismatchOut
from sessiond.domain.fingerprint import Fingerprint, compare
from sessiond_cli.commands import probe
from sessiond_cli.output import print_causes

if TYPE_CHECKING:
    from sessiond.domain.canonical import JsonValue

BLOCKS: tuple[JsonValue, JsonValue] = (
    [{"block_tokens": 128, "a": 1}],
    [{"block_tokens": 64, "a": 1}],
)


def shown(monkeypatch: pytest.MonkeyPatch, field: str, stored: JsonValue, live: JsonValue) -> str:
    """Return what the command prints where one field differs."""
    differing = compare(Fingerprint({field: stored}), Fingerprint({field: live}))
    found: dict[str, Any] = {
        "engine": {"engine_id": "e", "model": "m"},
        "would_resume": False,
        "plan": "recompute",
        "generation": 1,
        "tokens_loadable": 0,
        "tokens_total": 100,
        "tokens_restorable": 96,
        "mismatches": [MismatchOut.of(one).model_dump(mode="json") for one in differing],
        "causes": [one.cause.as_json() for one in differing],
    }
    written = io.StringIO()
    screen = Console(file=written, width=10_000, highlight=False, markup=False)
    monkeypatch.setattr(probe, "probed", lambda *_: found)
    monkeypatch.setattr("sessiond_cli.output.console", lambda **_: screen)
    probe.probe(session="agent")
    return written.getvalue()


def test_a_digest_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    words = shown(monkeypatch, "weights_digest", "a" * 64, "b" * 64)
    assert all(words.count(one * 64) == 2 for one in "ab")  # in the table, and below it


def test_of_a_field_with_keys_those_that_differ_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    words = shown(monkeypatch, "kv_groups", *BLOCKS)
    assert words.count("0.block_tokens stored 128, live 64") == 2
    assert "{" not in words


def test_an_object_that_one_side_lacks_is_shown() -> None:
    written = io.StringIO()
    cause = {"reason": "r", "sentence": "s", "hint": "h", "stored": None, "live": {"tp": 2}}
    print_causes(Console(file=written, width=200), [cause])
    assert "stored: None  live: {'tp': 2}" in written.getvalue()


def test_what_a_daemon_of_before_tells_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MismatchOut, "model_dump", lambda one, **_: _without_detail(one))
    assert "kv_groups" in shown(monkeypatch, "kv_groups", *BLOCKS)


def _without_detail(mismatch: MismatchOut) -> dict[str, Any]:
    return {name: value for name, value in vars(mismatch).items() if name != "detail"}
