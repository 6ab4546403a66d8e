"""What ``sessiond bench soak`` is told."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sessiond.domain.errors import ConfigurationError

_SHORTEST_MINUTES: Final = 0.5


@dataclass(frozen=True)
class SoakOptions:
    """How long, how many, and the seed of what they do."""

    folder: Path
    models: Path
    minutes: float = 10.0
    agents: int = 8
    seed: int = 1

    @property
    def seconds(self) -> float:
        """How long the agents work."""
        return self.minutes * 60

    def require_possible(self) -> None:
        """Check the numbers.

        :raises ConfigurationError: it cannot be run
        """
        if not self.minutes >= _SHORTEST_MINUTES:
            raise ConfigurationError(f"A soak takes {_SHORTEST_MINUTES} minutes or more.")
        if self.agents < 1:
            raise ConfigurationError("A soak has one agent or more.")


def soak_options(parser: argparse.ArgumentParser) -> None:
    """Add the soak's own options."""
    defaults = SoakOptions
    parser.add_argument(
        "--minutes",
        type=float,
        default=defaults.minutes,
        help="that the agents work, engine starts after a kill included (default: 10)",
    )
    parser.add_argument("--agents", type=int, default=defaults.agents, help="at once (default: 8)")
    parser.add_argument(
        "--seed",
        type=int,
        default=defaults.seed,
        help="of what each agent does; when it comes to it depends on the machine (default: 1)",
    )
