"""``sessiond bench planner``: whether the planner's times, and its choices, are right.

Each resume is planned by the daemon, with what it has measured so far, and then taken both
ways: its KV is loaded, and computed again, in alternating order. Sessions of several sizes come
back from disk and from the RAM tier, while no, one or two other requests decode.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sessiond.app.bench.arrivals import UnexpectedPathError, prompts
from sessiond.app.bench.kv import CHUNK_TOKENS
from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.bench.planner_sessions import Returning
from sessiond.app.bench.planner_trials import Trial, load_seconds, summary
from sessiond.app.bench.stage import own_folder, start_with_small_ram
from sessiond.app.bench.streams import flowing
from sessiond.app.trials import Say
from sessiond.domain.calibration import Curves, read_calibration
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.planner import plan
from sessiond.domain.plans import PlanInputs, Span
from sessiond.domain.samples import Tier
from sessiond.domain.timing import TurnTiming
from sessiond.testing.agent import Agent
from sessiond.testing.model import MODEL_NAME
from sessiond.testing.stack import Stack

_SIZES: Final = (512, 640, 768, 896, 1152, 1408, 1792, 2304, 3584, 7808)
_FILLER_TOKENS: Final = 7808  #: fills the RAM tier
_STREAMS: Final = (0, 1, 2)
_STREAM_PROMPT_TOKENS: Final = 64
_KV_SPACE_GIB: Final = 1
_SETTINGS: Final = {"SESSIOND_PLAN_POLICY": "auto", "SESSIOND_FIRST_LOOK": "true"}


@dataclass(frozen=True)
class PlannerOptions:
    """How much is measured."""

    folder: Path
    models: Path
    resumes: int = 60
    seed: int = 1

    def require_possible(self) -> None:
        """Check the options.

        :raises ConfigurationError: they cannot be used.
        """
        if self.resumes < 1:
            raise ConfigurationError("At least one resume is measured.")


def planner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the benchmark."""
    parser.add_argument(
        "--resumes",
        type=int,
        default=PlannerOptions.resumes,
        help="how many, each taken both ways (default: 60)",
    )
    parser.add_argument(
        "--seed", type=int, default=PlannerOptions.seed, help="of their order (default: 1)"
    )


def measure_planner(options: PlannerOptions, say: Say) -> dict[str, Any]:
    """Start an engine and a daemon, measure, and return the report.

    :raises ConfigurationError: the options cannot be used.
    :raises UnexpectedPathError: a turn was not served as it should have been.
    """
    options.require_possible()
    with (
        own_folder(options.folder, "planner") as folder,
        Stack(folder, _SETTINGS) as stack,
        closing(_Bench(stack, options, say)) as bench,
    ):
        say("starting sessiond and the engine")
        bench.start()
        return {
            "kind": "planner",
            **summary(bench.trials()),
            "model": MODEL_NAME,
            "seed": options.seed,
            "machine": describe_machine(options.folder.absolute()),
            "versions": versions(),
        }


class _Bench:
    def __init__(self, stack: Stack, options: PlannerOptions, say: Say) -> None:
        self._stack, self._options, self._say = stack, options, say
        self._chance = random.Random(options.seed)  # noqa: S311 - an order, no secret
        self._returning: dict[int, Returning] = {}
        self._filler: Returning | None = None
        self._tokens: list[int] = []

    def start(self) -> None:
        chunks = _FILLER_TOKENS // CHUNK_TOKENS
        self._tokens = start_with_small_ram(
            self._stack, self._options.models, chunks, _KV_SPACE_GIB
        )
        self._say("taking first turns")
        for place, size in enumerate((*_SIZES, _FILLER_TOKENS)):
            made = self._made(size, place)
            if place < len(_SIZES):
                self._returning[size] = made
            self._filler = made

    def trials(self) -> list[Trial]:
        cases = [
            (size, tier, streams)
            for tier in (Tier.NVME, Tier.RAM)
            for streams in _STREAMS
            for size in _SIZES
        ]
        found: list[Trial] = []
        while len(found) < self._options.resumes:
            self._chance.shuffle(cases)
            for size, tier, streams in cases[: self._options.resumes - len(found)]:
                found.append(self._trial(size, tier, streams, len(found)))
                if len(found) % 10 == 0:
                    self._say(f"{len(found)} of {self._options.resumes} resumes")
        return found

    def close(self) -> None:
        for one in (*self._returning.values(), self._filler):
            if one is not None:
                one.agent.close()

    def _made(self, size: int, place: int) -> Returning:
        (prompt,) = prompts(self._tokens, size + 1, 3 * place, 1)
        agent = Agent(f"session-{place}", self._stack.daemon_port, self._stack.engine_port)
        agent.create_session()
        one = Returning(agent, prompt)
        one.turn()
        snapshot = agent.suspend()["snapshot"]
        if snapshot["tokens_restorable"] != size:
            raise UnexpectedPathError(f"A session was suspended as {snapshot}.")
        one.raw_bytes = snapshot["raw_bytes"]
        return one

    def _flowing(self, streams: int) -> Any:  # noqa: ANN401 - a context manager of lists
        pieces = prompts(self._tokens, _STREAM_PROMPT_TOKENS, 1, streams)
        # Through the gateway: what an engine is asked directly, sessiond does not know of.
        return flowing(f"http://127.0.0.1:{self._stack.daemon_port}", pieces)

    def _trial(self, size: int, tier: Tier, streams: int, number: int) -> Trial:
        one, load_first = self._returning[size], number % 2 == 0
        planned: Mapping[str, Any] = {}
        ways: dict[str, TurnTiming] = {}
        for way in ("load", "recompute") if load_first else ("recompute", "load"):
            self._evict()
            if way == "load" and tier is Tier.RAM:
                one.policy("always_load")
                one.turn()  # from disk, through the RAM tier, which keeps it
                self._stack.clear_vram()
            with self._flowing(streams):
                planned = planned or self._planned(one, tier, streams)
                ways[way] = self._taken(one, way, tier)
        load, recompute = ways["load"], ways["recompute"]
        return Trial(
            tokens=size,
            tier=tier.value,
            streams=streams,
            load_first=load_first,
            choice=planned["choice"],
            planned_load_s=planned["load"]["ready"]["likely_s"],
            planned_recompute_s=planned["recompute"]["ready"]["likely_s"],
            load_s=load_seconds(load),
            recompute_s=recompute.prefill_s,
            load_ready_s=load.ready_s,
            recompute_ready_s=recompute.ready_s,
        )

    def _planned(self, one: Returning, tier: Tier, streams: int) -> Mapping[str, Any]:
        """Return the plan of the policy auto.

        Of KV in the RAM tier only the engine knows: that is told to the planner here, which
        reckons with the daemon's own measurements.
        """
        one.policy("auto")
        if tier is Tier.NVME:
            decision: Mapping[str, Any] = one.agent.try_call(
                "GET", f"/v1/sessions/{one.agent.session_id}/probe"
            ).json()["decision"]
            return decision
        span = Span(Tier.RAM, len(one.prompt) - 1, one.raw_bytes)
        inputs = PlanInputs(
            len(one.prompt) - 1, CHUNK_TOKENS, (span,), self._curves(), others=streams
        )
        return plan(inputs).as_json()

    def _curves(self) -> Curves:
        """Return the curves that the daemon has fitted, of what it has saved."""
        (path,) = (self._stack.store_root / "calibration").glob("*.json")
        value = json.loads(path.read_bytes())
        return read_calibration(value).calibration.curves(time.time())

    def _taken(self, one: Returning, way: str, tier: Tier) -> TurnTiming:
        one.policy("always_load" if way == "load" else "never_load")
        timing = one.turn()
        found = timing.ram_tokens if tier is Tier.RAM else timing.disk_tokens
        wanted = len(one.prompt) - 1 if way == "load" else 0
        if found != wanted or (way == "recompute" and timing.prefill_from_token):
            raise UnexpectedPathError(f"A {way} from {tier} was served another way: {timing}.")
        return timing

    def _evict(self) -> None:
        """Put all KV out of VRAM and RAM: a session that fills the RAM tier comes back to it."""
        self._stack.clear_vram()
        assert self._filler is not None
        self._filler.policy("always_load")
        self._filler.turn()
        self._stack.clear_vram()
