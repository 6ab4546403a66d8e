"""What ``sessiond bench gateway`` is told, and the servers that it calls."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sessiond.app.bench.calls import Target
from sessiond.app.bench.stage import own_folder
from sessiond.app.trials import Say
from sessiond.domain.errors import ConfigurationError
from sessiond.testing.model import MODEL_NAME, build_model
from sessiond.testing.stack import Stack

_TIMEOUT_S = 60.0
_KV_SPACE_GIB = 2
#: Of what the chat template adds, and of replies.
_SPARE_TOKENS = 512


@dataclass(frozen=True)
class GatewayOptions:
    """How many turns and streams; with a daemon's URL, none is started."""

    folder: Path
    models: Path
    url: str = ""  #: of a running daemon; empty: one is started, with an engine
    token: str = field(default="", repr=False)  #: of the daemon
    engine_api_key: str = field(default="", repr=False)
    rounds: int = 6
    turns: int = 20  #: of each kind and way in each round
    context_tokens: int = 2048
    streams: int = 32
    stream_tokens: int = 64

    def require_possible(self) -> None:
        """Check the numbers.

        :raises ConfigurationError: it cannot be measured
        """
        counts = (self.rounds, self.turns, self.context_tokens, self.streams, self.stream_tokens)
        if min(counts) < 1:
            raise ConfigurationError("Rounds, turns, streams and tokens are above zero.")


@dataclass(frozen=True)
class Servers:
    """What is called."""

    daemon: Target
    engine: Target
    model: str


@contextmanager
def serving(options: GatewayOptions, say: Say) -> Iterator[Servers]:
    """Yield the servers, started ones unless others are given.

    :raises ConfigurationError: it cannot be measured with the given ones.
    """
    if options.url:
        yield _given(options, options.url.rstrip("/"))
        return
    with own_folder(options.folder, "gateway") as folder, Stack(folder) as stack:
        say(f"starting sessiond and an engine with {MODEL_NAME}")
        stack.start_daemon()
        env = {"VLLM_CPU_KVCACHE_SPACE": str(_KV_SPACE_GIB)}
        stack.start_engine(build_model(options.models.absolute()), (), env)
        yield _given(options, f"http://127.0.0.1:{stack.daemon_port}")


def _given(options: GatewayOptions, url: str) -> Servers:
    daemon = Target(url, _bearer(options.token))
    answer = httpx.get(f"{url}/v1/engines", headers=daemon.headers, timeout=_TIMEOUT_S)
    engines = [one for one in answer.raise_for_status().json()["engines"] if one["url"]]
    if len(engines) != 1:
        raise ConfigurationError(f"The daemon has {len(engines)} engines; it takes exactly one.")
    (engine,) = engines
    needed_tokens = options.context_tokens + options.stream_tokens + _SPARE_TOKENS
    if engine["max_model_tokens"] < needed_tokens:
        raise ConfigurationError("So long a context does not fit the engine's model.")
    return Servers(
        daemon, Target(engine["url"], _bearer(options.engine_api_key)), str(engine["model"])
    )


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


def gateway_options(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's own options."""
    defaults = GatewayOptions
    parser.add_argument(
        "--url", default="", help="a running daemon with one engine (default: both are started)"
    )
    parser.add_argument(
        "--token",
        default=os.environ.get("SESSIOND_TOKEN", ""),
        help="for that daemon (default: $SESSIOND_TOKEN)",
    )
    parser.add_argument(
        "--engine-api-key",
        default=os.environ.get("SESSIOND_ENGINE_API_KEY", ""),
        help="for its engine (default: $SESSIOND_ENGINE_API_KEY)",
    )
    numbers = {
        "rounds": "that alternate",
        "turns": "of each kind, in each way and round",
        "context-tokens": "of the turns' prompt, about",
        "streams": "at once",
        "stream-tokens": "that each of them gets",
    }
    for name, meaning in numbers.items():
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default: {default})"
        )
