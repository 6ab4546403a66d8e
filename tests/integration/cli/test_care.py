"""How a session is looked after: create, set, and what a suspend does about evicted KV."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from sessiond.testing.served import ServedWorld
    from tests.integration.cli.conftest import Ask, Run


def test_create_and_set(run: Run, ask: Ask) -> None:
    made = ask("create", "s-1", "--model", "smol", "--ttl", "60", "--on-evicted", "skip")
    shown = {name: made[name] for name in ("model", "idle_timeout_s", "ttl_s", "on_evicted")}
    assert shown == {"model": "smol", "idle_timeout_s": None, "ttl_s": 60.0, "on_evicted": "skip"}
    changed = ask("set", "s-1", "--idle-timeout", "5", "--ttl", "default", "--pin")
    assert (changed["idle_timeout_s"], changed["ttl_s"], changed["pinned"]) == (5.0, None, True)
    assert changed["on_evicted"] == "skip"
    assert ask("set", "s-1", "--on-evicted", "default", "--unpin")["on_evicted"] is None
    assert ask("create")["session_id"]
    assert "on evicted    the daemon's" in run("show", "s-1").stdout
    assert "on evicted    recompute" in run("set", "s-1", "--on-evicted", "recompute").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--ttl", "soon"),
        ("--ttl", "nan"),
        ("--idle-timeout", "inf"),
        ("--on-evicted", "archive"),
    ],
)
def test_a_set_that_means_nothing(run: Run, arguments: tuple[str, ...]) -> None:
    run("create", "s-1")
    ended = run("set", "s-1", *arguments)
    assert ended.exit_code == ExitStatus.USAGE


def test_a_suspend_chooses_for_itself(served: ServedWorld, run: Run, ask: Ask) -> None:
    engine = served.world.start_engine()
    run("create", AGENT, "--on-evicted", "skip")
    served.run(served.world.turn, AGENT, text(100))
    engine.evict(keep_tokens=50)
    ended = run("suspend", AGENT, "--json")
    assert ended.exit_code == ExitStatus.INVALID
    assert json.loads(ended.stderr)["code"] == "suspend_skipped"
    kept = ask("suspend", AGENT, "--on-evicted", "prefix")
    assert (kept["evicted_tokens"], kept["recomputed_tokens"]) == (48, 0)
    shown = run("suspend", AGENT, "--on-evicted", "recompute").stdout
    assert "recomputed  48 tokens" in shown
    assert run("suspend", AGENT, "--on-evicted", "default").exit_code == ExitStatus.USAGE
