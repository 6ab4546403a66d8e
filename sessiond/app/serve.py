"""``sessiond serve``: the daemon."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from typing import TYPE_CHECKING

import uvicorn

from sessiond.app.config import ENV_PREFIX, Settings, load_settings
from sessiond.app.exits import refusal_text
from sessiond.app.logs import json_log_config, text_log_config
from sessiond.app.wiring import open_daemon
from sessiond.domain.errors import SessiondError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from fastapi import FastAPI

_EPILOG = """
Every setting is a SESSIOND_* variable and a key of the TOML file that SESSIOND_CONFIG names;
the options above come before both, the environment before the file.

exit status: 0 after SIGTERM or SIGINT; 1 if it could not start, as when the port is taken; 2 if
the configuration, the store or the registry cannot be used.
"""


def run(arguments: Sequence[str]) -> int:
    """Run ``sessiond serve`` with *arguments* until a signal; return the exit status."""
    options = vars(_parser().parse_args(arguments))
    as_json = bool(options.pop("json"))
    try:
        settings = load_settings(**options)
        with open_daemon(settings) as app:
            return _serve(app, settings, as_json=as_json)
    except SessiondError as error:
        sys.stderr.write(refusal_text("serve", error, as_json=as_json))
        return 2


def _serve(app: FastAPI, settings: Settings, *, as_json: bool) -> int:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        log_config=(json_log_config if as_json else text_log_config)(settings.log_level),
        access_log=settings.log_level == "debug",
        server_header=False,
        # Calls that wait for an operation get this long; the operations then as long again.
        timeout_graceful_shutdown=max(1, math.ceil(settings.shutdown_grace_s)),
    )
    # Uvicorn raises its signal again when it has shut down: a stop that was asked for is no
    # failure, so the second one must find a handler that lets us end with status 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    server = _Server(config, app.state.end_streams)
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    except SystemExit:
        sys.stderr.write(f"sessiond serve: cannot listen on {settings.host}:{settings.port}\n")
        return 1
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Ends the streams that have no end of their own: Uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to accept connections, and wait for the calls that are answered now."""
        self._end_streams()
        await super().shutdown(sockets)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond serve",
        description="Run the daemon: sessions, suspends, resumes and the idle sweep.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, kind in (("host", str), ("port", int), ("store_root", str)):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            help=f"{Settings.model_fields[name].description} [env: {ENV_PREFIX}{name.upper()}]",
        )
    parser.add_argument("--json", action="store_true", help="write log lines as JSON objects")
    return parser
