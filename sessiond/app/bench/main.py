"""The command line of ``sessiond bench``."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sessiond.app.bench import report
from sessiond.app.bench.gateway import measure_gateway
from sessiond.app.bench.given import GatewayOptions, gateway_options
from sessiond.app.bench.interference import InterferenceOptions, measure_interference
from sessiond.app.bench.kv import real_kv
from sessiond.app.bench.planner import PlannerOptions, measure_planner, planner_options
from sessiond.app.bench.planner_trials import show_planner
from sessiond.app.bench.resume.options import given, resume_options
from sessiond.app.bench.resume.run import measure_resume
from sessiond.app.bench.resume.show import show_resume
from sessiond.app.bench.soak.options import SoakOptions, soak_options
from sessiond.app.bench.soak.report import passed, show_soak
from sessiond.app.bench.soak.soak import measure_soak
from sessiond.app.bench.store import CODECS, DEFAULT_CODECS, StoreOptions, measure
from sessiond.app.trials import Say, add_places, timed
from sessiond.domain.errors import ConfigurationError

_EPILOG = (
    "exit status: 0 if it was measured, and a soak found nothing; else 1; 2 if the options "
    "cannot be used."
)
_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20}
_UNITS["GiB"] = 1 << 30


def run(arguments: Sequence[str]) -> int:
    """Measure, print, and return the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=options.json)
    say = timed(console)
    # What was started and written is cleaned up on the way out, however that comes.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        found = options.measure(options, say)
    except ConfigurationError as error:
        sys.stderr.write(f"sessiond bench: {error}\n")
        return 2
    except RuntimeError as error:  # wrong bytes, a mover or a server that failed
        sys.stderr.write(f"sessiond bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    options.show(found, console)
    text = json.dumps(found, indent=1) + "\n"
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)
    if options.json:
        sys.stdout.write(text)
    return 0 if options.passed(found) else 1


def size_bytes(text: str) -> int:
    """Read a size such as ``2GB``, ``512MiB`` or ``1000000``.

    :raises argparse.ArgumentTypeError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 2GB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _store(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    source = real_kv(options.models, options.kv, options.contexts, say)
    return measure(
        source,
        StoreOptions(
            folder=options.folder,
            size_bytes=options.size,
            window_bytes=options.window,
            rounds=options.rounds,
            codecs=tuple(options.codecs.split(",")),
            read_threads=options.read_threads,
        ),
        say,
    )


def _interference(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    return measure_interference(
        InterferenceOptions(
            folder=options.folder,
            models=options.models,
            arrivals=options.arrivals,
            sessions=options.sessions,
            context_tokens=options.context_tokens,
            streams=options.streams,
            interval_s=options.interval,
        ),
        say,
    )


def _gateway(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    return measure_gateway(
        GatewayOptions(
            folder=options.folder,
            models=options.models,
            url=options.url,
            token=options.token,
            engine_api_key=options.engine_api_key,
            rounds=options.rounds,
            turns=options.turns,
            context_tokens=options.context_tokens,
            streams=options.streams,
            stream_tokens=options.stream_tokens,
        ),
        say,
    )


def _soak(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    return measure_soak(
        SoakOptions(
            folder=options.folder,
            models=options.models,
            minutes=options.minutes,
            agents=options.agents,
            seed=options.seed,
        ),
        say,
    )


def _resume(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    return measure_resume(given(options), say)


def _planner(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    return measure_planner(
        PlannerOptions(options.folder, options.models, options.resumes, options.seed), say
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sessiond bench", description="Measure on this machine.", epilog=_EPILOG
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")
    store = _benchmark(commands, "store", "the store beside the bare device and others", _store)
    store.set_defaults(show=report.show_store)
    _store_options(store)
    other = _benchmark(
        commands,
        "interference",
        "what other requests notice of suspends and resumes",
        _interference,
    )
    other.set_defaults(show=report.show_interference)
    _interference_options(other)
    third = _benchmark(commands, "gateway", "what a turn costs through the gateway", _gateway)
    third.set_defaults(show=report.show_gateway)
    gateway_options(third)
    fourth = _benchmark(
        commands, "soak", "whether tokens, sessions and resources last, while much dies", _soak
    )
    fourth.set_defaults(show=show_soak, passed=passed)
    soak_options(fourth)
    fifth = _benchmark(commands, "resume", "coming back, beside other ways", _resume)
    fifth.set_defaults(show=show_resume)
    resume_options(fifth, size_bytes)
    sixth = _benchmark(
        commands, "planner", "whether plans to load or recompute are right", _planner
    )
    sixth.set_defaults(show=show_planner)
    planner_options(sixth)
    return parser


def _benchmark(
    commands: Any,  # noqa: ANN401 - argparse keeps the class to itself
    name: str,
    purpose: str,
    measure_it: Callable[[argparse.Namespace, Say], Mapping[str, Any]],
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=f"Measure {purpose}.", epilog=_EPILOG
    )
    made.set_defaults(measure=measure_it, passed=lambda _found: True)
    add_places(made, ".bench")
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    made.add_argument("--output", type=Path, help="write the report as JSON into this file too")
    return made


def _store_options(store: argparse.ArgumentParser) -> None:
    store.add_argument(
        "--size", type=size_bytes, default=size_bytes("2GB"), help="raw KV bytes (default: 2GB)"
    )
    store.add_argument(
        "--window",
        type=size_bytes,
        default=size_bytes("2GB"),
        help="size of the RAM region, and of the longest session (default: 2GB)",
    )
    store.add_argument("--rounds", type=int, default=5, help="samples of everything (default: 5)")
    store.add_argument(
        "--codecs",
        default=",".join(DEFAULT_CODECS),
        help=f"codecs of the mover, of {', '.join(CODECS)} (default: %(default)s)",
    )
    store.add_argument("--read-threads", type=int, help="of the mover (default: its own)")
    store.add_argument(
        "--contexts",
        type=int,
        default=4,
        help="texts of 8,192 tokens whose KV is computed, once (default: 4, of 189 MB each)",
    )
    store.add_argument(
        "--kv",
        type=Path,
        default=Path(".cache/kv"),
        help="where computed KV is kept (default: .cache/kv)",
    )


def _interference_options(other: argparse.ArgumentParser) -> None:
    defaults = InterferenceOptions
    other.add_argument(
        "--arrivals", type=int, default=defaults.arrivals, help="of each kind (default: 50)"
    )
    other.add_argument(
        "--sessions",
        type=int,
        default=defaults.sessions,
        help="that arrive one after the other in a block (default: 10)",
    )
    other.add_argument(
        "--context-tokens",
        type=int,
        default=defaults.context_tokens,
        help="of each session (default: 4096)",
    )
    other.add_argument(
        "--streams",
        type=int,
        default=defaults.streams,
        help="other requests that decode meanwhile (default: 2)",
    )
    other.add_argument(
        "--interval",
        type=float,
        default=defaults.interval_s,
        help="seconds between arrivals (default: 1)",
    )
