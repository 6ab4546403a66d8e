from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sessiond.api.models import SessionOut
from sessiond.testing.world import AGENT, text
from sessiond_cli.exits import ExitStatus

if TYPE_CHECKING:
    from sessiond.testing.served import ServedWorld
    from tests.integration.cli.conftest import Ask, Run


def test_a_session_is_forked(served: ServedWorld, run: Run, ask: Ask) -> None:
    served.world.start_engine()
    served.run(served.world.create)
    served.run(served.world.turn, AGENT, text(100))
    early = run("fork", AGENT, "--json")
    assert early.exit_code == ExitStatus.NOT_FOUND
    assert json.loads(early.stderr)["code"] == "snapshot_not_found"
    ask("suspend", AGENT)

    made = SessionOut.model_validate(ask("fork", AGENT, "b", "--generation", "1"))
    assert made.forked_from is not None
    assert (made.session_id, made.forked_from.session_id) == ("b", AGENT)

    told = [line.split() for line in run("fork", "b", "c").stdout.splitlines()]
    assert ["session", "c"] in told
    assert ["forked", "from", "b,", "generation", "1"] in told
    assert ["tokens", "96", "of", "108"] in told
    shown = [line.split() for line in run("show", "c").stdout.splitlines()]
    assert ["forked", "from", "b,", "generation", "1"] in shown
    assert run("fork", AGENT, "b").exit_code == ExitStatus.CONFLICT
