"""The ``sessionctl`` command."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from sessiond import __version__
from sessiond_cli.commands.change import change
from sessiond_cli.commands.create import create
from sessiond_cli.commands.drain import drain, undrain
from sessiond_cli.commands.engines_attest import attest
from sessiond_cli.commands.engines_list import list_engines
from sessiond_cli.commands.fork import fork
from sessiond_cli.commands.list import list_sessions
from sessiond_cli.commands.pause import pause, unpause
from sessiond_cli.commands.plan import plan
from sessiond_cli.commands.probe import probe
from sessiond_cli.commands.purge import purge
from sessiond_cli.commands.resume import resume
from sessiond_cli.commands.show import show_session
from sessiond_cli.commands.status import status
from sessiond_cli.commands.store_inspect import inspect
from sessiond_cli.commands.store_verify import verify
from sessiond_cli.commands.suspend import suspend
from sessiond_cli.exits import exit_status_block
from sessiond_cli.failures import run_reported

EPILOG: Final = exit_status_block()


class _ReportingGroup(TyperGroup):
    """Reports every error in our one form, also those of the command line itself."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - the base class's
        windows_expand_args: bool = True,  # noqa: ARG002, FBT001, FBT002 - the same
        **extra: Any,  # noqa: ANN401 - the base class's
    ) -> int:
        """Run the command line; end the process with its status in standalone mode."""
        given = sys.argv[1:] if args is None else list(args)
        run = partial(super().main, given, prog_name, complete_var, standalone_mode=False, **extra)
        status = run_reported(run, as_json="--json" in given)
        if standalone_mode:
            sys.exit(status)
        return status


def _app(text: str, **options: Any) -> typer.Typer:  # noqa: ANN401 - Typer's options
    return typer.Typer(
        help=text,
        epilog=EPILOG,
        add_completion=False,
        # Plain help: the same in a terminal, a pipe and a file.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **options,
    )


app = _app("Ask and steer a sessiond daemon.", name="sessionctl", cls=_ReportingGroup)
_engines = _app("Look at the running engines.")
_store = _app("Look at the files of a store.")

app.command("list", epilog=EPILOG)(list_sessions)
app.command("show", epilog=EPILOG)(show_session)
app.command("create", epilog=EPILOG)(create)
app.command("set", epilog=EPILOG)(change)
app.command("suspend", epilog=EPILOG)(suspend)
app.command("resume", epilog=EPILOG)(resume)
app.command("fork", epilog=EPILOG)(fork)
app.command("drain", epilog=EPILOG)(drain)
app.command("undrain", epilog=EPILOG)(undrain)
app.command("probe", epilog=EPILOG)(probe)
app.command("plan", epilog=EPILOG)(plan)
app.command("purge", epilog=EPILOG)(purge)
app.command("status", epilog=EPILOG)(status)
app.command("pause", epilog=EPILOG)(pause)
app.command("unpause", epilog=EPILOG)(unpause)
app.add_typer(_engines, name="engines")
_engines.command("list", epilog=EPILOG)(list_engines)
_engines.command("attest", epilog=EPILOG)(attest)
app.add_typer(_store, name="store")
_store.command("inspect", epilog=EPILOG)(inspect)
_store.command("verify", epilog=EPILOG)(verify)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - called by Typer
    if wanted:
        sys.stdout.write(f"sessionctl {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Hold the options that come before a command."""


@_engines.callback()
def _engines_options() -> None:
    """Hold the options that come before a command of the engines."""


@_store.callback()
def _store_options() -> None:
    """Hold the options that come before a command of the store."""


def main() -> None:
    """Run ``sessionctl`` and end the process with its exit status."""
    app()


if __name__ == "__main__":
    main()
