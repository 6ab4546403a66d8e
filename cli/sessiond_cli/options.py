"""The options that commands share. Each help line names its environment variable."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

#: The daemon's default address; a test compares it with the daemon's settings.
DEFAULT_URL: Final = "http://127.0.0.1:8600"

JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON for scripts; fields may be added in later versions. Errors are one "
        "JSON line on stderr with code, message and hint.",
    ),
]
UrlOption = Annotated[
    str,
    typer.Option("--url", envvar="SESSIOND_URL", metavar="URL", help="Where the daemon listens."),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="SESSIOND_TOKEN",
        metavar="TOKEN",
        show_default=False,
        help="The bearer token. Prefer the variable: others can read command lines.",
    ),
]
ProbedEngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        show_default=False,
        help="An engine's id. Left out: the engine that would serve the session.",
    ),
]
SessionArgument = Annotated[str, typer.Argument(metavar="ID", help="The session's id.")]
WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        max=3600,
        metavar="SECONDS",
        show_default=False,
        help="How long to wait. After that the operation goes on, its id is printed and the "
        "exit status is 0. Left out: until it has ended.",
    ),
]
ModelFilter = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Only sessions for this model."),
]
SnapshotFilter = Annotated[
    bool | None,
    typer.Option(
        "--has-snapshot/--no-snapshot",
        show_default=False,
        help="Only sessions that have, or have not, a snapshot.",
    ),
]
PinnedFilter = Annotated[
    bool | None,
    typer.Option("--pinned/--not-pinned", show_default=False, help="Only these sessions."),
]


@dataclass(frozen=True)
class Filters:
    """Which sessions are meant; ``None`` matches all."""

    model: str | None
    has_snapshot: bool | None
    pinned: bool | None

    def as_json(self) -> dict[str, str | bool]:
        """Return the filters that are given."""
        given = {"model": self.model, "has_snapshot": self.has_snapshot, "pinned": self.pinned}
        return {name: value for name, value in given.items() if value is not None}
