"""Errors as people and scripts see them; the only place that decides an exit status."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import typer

from sessiond.domain.errors import SessiondError
from sessiond_cli.exits import INTERRUPTED_CODE, USAGE_CODE, ExitStatus, exit_status
from sessiond_cli.formats import plain

if TYPE_CHECKING:
    from collections.abc import Callable

# Typer brings the parser's error classes along under changing names; this one is their base.
_UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]
_USAGE_HINT: Final = (
    "'sessionctl --help' lists the commands, 'sessionctl COMMAND --help' their options."
)


@dataclass(frozen=True)
class Failure:
    """What is told of an error."""

    code: str
    message: str
    hint: str
    status: ExitStatus


class CommandError(Exception):
    """A command failed in an expected way."""

    def __init__(
        self, code: str, message: str, hint: str = "", status: ExitStatus | None = None
    ) -> None:
        super().__init__(message)
        self.failure = Failure(code, message, hint, status or exit_status(code))


def run_reported(command: Callable[[], object], *, as_json: bool) -> int:
    """Run *command* and return its exit status; tell its errors on stderr, never as a stack."""
    try:
        ended = command()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.INTERNAL
    except (KeyboardInterrupt, typer.Abort):
        return _tell(Failure(INTERRUPTED_CODE, "Interrupted.", "", ExitStatus.INTERRUPTED), as_json)
    except Exception as error:  # noqa: BLE001 - the edge: a stack helps no operator
        return _tell(_failure(error), as_json)
    # The parser hands over the status of --help, --version and an interrupt.
    if ended == ExitStatus.INTERRUPTED:
        return _tell(Failure(INTERRUPTED_CODE, "Interrupted.", "", ExitStatus.INTERRUPTED), as_json)
    return ended if isinstance(ended, int) else ExitStatus.OK


def _failure(error: Exception) -> Failure:
    if isinstance(error, CommandError):
        return error.failure
    if isinstance(error, SessiondError):
        return Failure(error.code, error.message, error.hint, exit_status(error.code))
    if isinstance(error, _UsageError):
        message = cast(typer.BadParameter, error).format_message()
        return Failure(USAGE_CODE, message, _USAGE_HINT, ExitStatus.USAGE)
    return Failure(
        "internal_error", f"{type(error).__name__}: {error}", "", exit_status("internal_error")
    )


def _tell(failure: Failure, as_json: bool) -> ExitStatus:  # noqa: FBT001 - private, one meaning
    if as_json:
        told = {"code": failure.code, "message": failure.message, "hint": failure.hint}
        sys.stderr.write(json.dumps(told) + "\n")
        return failure.status
    sys.stderr.write(f"sessionctl: {plain(failure.message)}\n")
    if failure.hint:
        sys.stderr.write(f"hint: {plain(failure.hint)}\n")
    return failure.status
