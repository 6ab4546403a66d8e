"""``probe`` and ``engines`` against the real API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessiond.api.models_engines import AttestOut, EnginesOut
from sessiond.api.models_turns import ProbeOut
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
    assert row[2:4] == ["a" * 19 + "…", "f" * 19 + "…"]
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
