"""``probe`` and ``engines`` against the real API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessiond.api.models_engines import AttestOut, EnginesOut
from sessiond.api.models_turns import ProbeOut
from sessiond.domain.samples import Tier
from sessiond.domain.slowpath import SlowPath, Stage
from sessiond.testing.served import ServedWorld
from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from sessiond.testing.fake_engine import FakeEngine
    from tests.integration.cli.conftest import Ask, Run


@pytest.fixture
def engine(served: ServedWorld) -> FakeEngine:
    """Return an engine in which the agent has taken a turn that was suspended."""
    started = served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    served.run(served.world.suspend)
    return started


def code(run: Run, *arguments: str) -> tuple[int, str]:
    ended = run(*arguments, "--json")
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return ended.exit_code, json.loads(line)["code"]


def words(run: Run, *arguments: str) -> list[list[str]]:
    ended = run(*arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return [line.split() for line in ended.stdout.splitlines()]


def test_probe(served: ServedWorld, engine: FakeEngine, run: Run, ask: Ask) -> None:
    assert ProbeOut.model_validate(ask("probe", AGENT)).would_resume
    rows = words(run, "probe", AGENT)
    assert ["would", "resume", "yes"] in rows
    assert ["tokens", "96", "of", "108;", "96", "restorable"] in rows
    other = served.world.start_engine("other", fields={"weights_digest": "f" * 64})
    there = ask("probe", AGENT, "--engine", other.info.engine_id)
    assert (there["engine"]["engine_id"], there["would_resume"]) == (other.info.engine_id, False)
    rows = words(run, "probe", AGENT, "--engine", other.info.engine_id)
    assert ["would", "resume", "no"] in rows
    (row,) = (row for row in rows if row[:2] == ["weights_digest", "bytes"])
    assert row[2:4] == ["a" * 64, "f" * 64]
    assert any(row[:1] == ["weights_mismatch:"] for row in rows)
    assert code(run, "probe", AGENT, "--engine", "nobody") == (
        ExitStatus.NOT_FOUND,
        "engine_not_found",
    )
    assert code(run, "probe", "nobody") == (ExitStatus.NOT_FOUND, "session_not_found")
    assert code(run, "probe", "no/body") == (ExitStatus.INVALID, "invalid_session_id")
    served.world.kill_engine(other)
    served.world.kill_engine(engine)
    assert code(run, "probe", AGENT) == (ExitStatus.UNAVAILABLE, "no_engine")


def test_plan(served: ServedWorld, engine: FakeEngine, run: Run, ask: Ask) -> None:
    told = ask("plan", AGENT)
    assert told["decision"]["choice"] == "load"
    assert told["engine"]["engine_id"] == engine.info.engine_id
    rows = words(run, "plan", AGENT)
    assert ["session", AGENT] in rows
    assert ["policy", "always_load"] in rows
    (load,) = (row for row in rows if row[0] == "load")
    (recompute,) = (row for row in rows if row[0] == "recompute")
    assert "tokens)," in load
    assert recompute[:2] == ["recompute", "queue"]
    ask("set", AGENT, "--plan-policy", "never_load", "--objective", "2.5")
    rows = words(run, "plan", AGENT)
    assert ["policy", "never_load"] in rows
    assert any(row[0] == "why" and "policy" in row for row in rows)
    assert ["plan", "policy", "never_load,", "objective", "2.50", "s"] in words(run, "show", AGENT)
    ask("set", AGENT, "--plan-policy", "default", "--objective", "default")
    assert ["plan", "policy", "the", "daemon's"] in words(run, "show", AGENT)
    assert ask("resume", AGENT, "--policy", "never_load")["plan"]["policy"] == "never_load"
    assert code(run, "resume", AGENT, "--policy", "maybe") == (ExitStatus.USAGE, "usage")
    assert code(run, "set", AGENT, "--plan-policy", "maybe") == (ExitStatus.USAGE, "usage")
    other = served.world.start_engine("other", fields={"weights_digest": "f" * 64})
    there = ask("plan", AGENT, "--engine", other.info.engine_id)
    assert there["decision"] is None
    rows = words(run, "plan", AGENT, "--engine", other.info.engine_id)
    assert ["choice", "none:", "nothing", "can", "be", "loaded"] in rows
    assert any(row[:1] == ["weights_mismatch:"] for row in rows)


def test_engines(served: ServedWorld, run: Run, ask: Ask) -> None:
    assert words(run, "engines", "list") == [["No", "engines."]]
    engine = served.world.start_engine(fields={"kv_groups": [{"kind": "FullAttentionSpec"}]})
    engine_id = engine.info.engine_id
    listed = EnginesOut.model_validate(ask("engines", "list"))
    assert [shown.engine_id for shown in listed.engines] == [engine_id]
    (row,) = (row for row in words(run, "engines", "list") if row[:1] == [engine_id])
    assert row[-2:] == ["FullAttentionSpec", "on"]

    engine.reset()
    shown = " ".join(next(row for row in words(run, "engines", "list") if engine_id in row))
    assert shown.endswith("off: the engine's caches were reset (attest)")
    done = AttestOut.model_validate(ask("engines", "attest", engine_id))
    assert (done.engine_id, done.was_off) == (engine_id, "the engine's caches were reset")
    assert ["tier", "on"] in words(run, "engines", "attest", engine_id)

    engine.update(tier_off="weights may change in place: sleep mode")
    assert code(run, "engines", "attest", engine_id) == (
        ExitStatus.CONFLICT,
        "attestation_refused",
    )
    for unknown in ("nobody", "no/body", "../engines"):
        status, _ = code(run, "engines", "attest", unknown)
        assert status == ExitStatus.NOT_FOUND


def test_slow_restores_are_told(served: ServedWorld, engine: FakeEngine, run: Run) -> None:
    slow = SlowPath(Tier.NVME, Stage.DISK, ((Stage.DISK, 1.0),), 8, 12.0, 3.0, 1.0)
    plans = served.world.services.context.plans
    plans.slow_paths[engine.info.engine_id, Tier.NVME] = slow

    told = run("engines", "list")

    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    assert slow.sentence in " ".join(lines)
    assert slow.hint in " ".join(lines)
