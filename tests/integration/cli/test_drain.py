from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sessiond.api.models_engines import DrainOut
from sessiond.domain.ids import DEFAULT_TENANT
from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from sessiond.testing.served import ServedWorld
    from tests.integration.cli.conftest import Ask, Run


def test_an_engine_is_drained(served: ServedWorld, run: Run, ask: Ask) -> None:
    engine = served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    engine_id = engine.info.engine_id

    engine.begin_turn(DEFAULT_TENANT, AGENT)
    told = run("drain", engine_id, "--deadline", "0").stdout
    assert [AGENT, "108", "turn_in_flight"] in [line.split()[1:] for line in told.splitlines()]
    assert "complete" in told
    engine.end_turn(DEFAULT_TENANT, AGENT)

    done = DrainOut.model_validate(ask("drain", engine_id, "--deadline", "60"))
    assert (done.complete, [one.session_id for one in done.saved]) == (True, [AGENT])
    assert "on, draining" in run("engines", "list").stdout

    assert ask("undrain", engine_id) == {"engine_id": engine_id, "was_draining": True}
    assert run("undrain", engine_id).stdout.split()[-1] == "no"
    gone = run("drain", "nobody", "--json")
    assert gone.exit_code == ExitStatus.NOT_FOUND
    assert json.loads(gone.stderr)["code"] == "engine_not_found"
