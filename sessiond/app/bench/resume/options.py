"""What ``sessiond bench resume`` is told."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sessiond.app.bench.resume.cost import Prices, price_options, prices_given
from sessiond.domain.errors import ConfigurationError

RECOMPUTE, VRAM, RAM = "recompute", "vram-warm", "sessiond-ram"
RAW, PLANAR, ZSTD = "sessiond-raw", "sessiond-planar-zstd", "sessiond-zstd"
FS, EXAMPLE, LMCACHE = "vllm-fs", "example-connector", "lmcache"
#: Each has engines of its own. Recompute's shows VRAM-warm too, sessiond's first one RAM.
CONTESTANTS = (RECOMPUTE, RAW, PLANAR, ZSTD, FS, EXAMPLE, LMCACHE)
OURS = (PLANAR, ZSTD, RAW)
#: Of vLLM's KV cache: as the model computes, or 8-bit floats.
AUTO, FP8 = "auto", "fp8"
KV_CACHE_DTYPES = (AUTO, FP8)
#: What compresses 16-bit numbers gains nothing for 8-bit ones, and the other way round.
_UNFIT = {AUTO: ZSTD, FP8: PLANAR}
COLD, PRESSURE, COMPETITION = "cold", "pressure", "competition"
SCENARIOS = (COLD, PRESSURE, COMPETITION)

#: Whole chunks of every contestant: LMCache's have 256 tokens, the others' 128.
UNIT_TOKENS = 256
MODEL_TOKENS = 8192
#: Prompts end two tokens after a chunk: vLLM's ExampleConnector leaves the last token out.
TAIL_TOKENS = 2
_MOST_TOKENS = MODEL_TOKENS - UNIT_TOKENS
#: The KV memory, and the RAM tier, hold this many of the longest contexts.
HELD_CONTEXTS = 2


@dataclass(frozen=True)
class ResumeOptions:
    """How much of what is measured."""

    folder: Path
    models: Path
    contexts: tuple[int, ...] = (2048, 4096, 7900)
    rounds: int = 5
    passes: int = 1
    seed: int = 0
    contestants: tuple[str, ...] = ()  #: none: all that fit the KV cache's type
    kv_cache_dtype: str = AUTO
    scenarios: tuple[str, ...] = SCENARIOS
    interval_s: float = 2.0
    lmcache_python: Path | None = None
    latency_bound_s: float = 1.0
    disk_budget_bytes: int | None = None
    prices: Prices = field(default_factory=Prices)
    html: Path | None = None
    samples: Path | None = None

    def __post_init__(self) -> None:
        """Let all take part where none is named."""
        if not self.contestants:
            fitting = (one for one in CONTESTANTS if one != _UNFIT.get(self.kv_cache_dtype))
            object.__setattr__(self, "contestants", tuple(fitting))

    @property
    def whole_tokens(self) -> tuple[int, ...]:
        """The contexts in whole chunks of every contestant, shortest first."""
        nearest = {max(1, round(each / UNIT_TOKENS)) * UNIT_TOKENS for each in self.contexts}
        return tuple(sorted(nearest))

    @property
    def samples_file(self) -> Path:
        """Where all samples go."""
        return self.samples or self.folder / "resume-samples.csv"

    def require_possible(self) -> None:
        """Check what can be measured.

        :raises ConfigurationError: it cannot
        """
        if min(self.rounds, self.passes, *self.contexts) < 1 or self.passes > self.rounds:
            raise ConfigurationError("Rounds, passes and contexts are above zero; passes ≤ rounds.")
        if self.whole_tokens[-1] > _MOST_TOKENS:
            raise ConfigurationError(f"A context has at most {_MOST_TOKENS} tokens.")
        if min(self.interval_s, self.latency_bound_s) <= 0:
            raise ConfigurationError("The interval and the latency bound are above zero.")
        _require_known("contestants", self.contestants, CONTESTANTS)
        _require_known("scenarios", self.scenarios, SCENARIOS)
        _require_known("types of the KV cache", (self.kv_cache_dtype,), KV_CACHE_DTYPES)
        if RECOMPUTE not in self.contestants or COLD not in self.scenarios:
            raise ConfigurationError(f"Everything is compared with {RECOMPUTE}, {COLD}.")
        if not set(OURS) & set(self.contestants):
            raise ConfigurationError(f"Of {' and '.join(OURS)}, one takes part.")
        if self.lmcache_python is not None and not shutil.which(self.lmcache_python):
            raise ConfigurationError(f"{self.lmcache_python} is no program.")


def _require_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown or not given:
        raise ConfigurationError(f"The {what} are {', '.join(known)}, not {unknown}.")


def names(text: str) -> tuple[str, ...]:
    """Read names that commas part."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 2048,4096") from None


def resume_options(parser: argparse.ArgumentParser, size: Callable[[str], int]) -> None:
    """Add the benchmark's own options.

    :param size: reads a size such as ``100GB``
    """
    defaults = ResumeOptions
    add = parser.add_argument
    contexts = ",".join(map(str, defaults.contexts))
    add(
        "--contexts",
        type=_numbers,
        default=defaults.contexts,
        help=f"tokens of the sessions, each rounded to {UNIT_TOKENS} (default: {contexts})",
    )
    add("--rounds", type=int, default=defaults.rounds, help="sessions of each length (default: 5)")
    add(
        "--passes",
        type=int,
        default=defaults.passes,
        help="through all contestants, over which the rounds are spread (default: 1)",
    )
    add("--seed", type=int, default=defaults.seed, help="of every order (default: 0)")
    add(
        "--contestants",
        type=names,
        default=(),
        help=f"of {', '.join(CONTESTANTS)} (default: all that fit the KV cache's type)",
    )
    add(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default=defaults.kv_cache_dtype,
        help="of every engine's KV cache; with fp8, the effect on tokens is measured too, and "
        "resumed ones must be exactly those from VRAM (default: auto)",
    )
    add(
        "--scenarios",
        type=names,
        default=SCENARIOS,
        help=f"of {', '.join(SCENARIOS)} (default: all)",
    )
    add(
        "--interval",
        type=float,
        default=defaults.interval_s,
        help="seconds between arrivals under pressure and competition (default: 2)",
    )
    add(
        "--lmcache-python",
        type=Path,
        help="Python of an environment that has LMCache beside vLLM (default: not measured)",
    )
    add(
        "--latency-bound",
        type=float,
        default=defaults.latency_bound_s,
        help="seconds within which a request counts as served (default: 1)",
    )
    add(
        "--disk-budget",
        type=size,
        help="for sessions on disk, such as 100GB (default: what is free)",
    )
    add(
        "--html",
        type=Path,
        help="write a report for people into this file, and its plots beside it",
    )
    add(
        "--samples",
        type=Path,
        help="file of all samples, as CSV (default: resume-samples.csv in the folder)",
    )
    price_options(parser)


def given(options: argparse.Namespace) -> ResumeOptions:
    """Return what the command line says."""
    return ResumeOptions(
        folder=options.folder,
        models=options.models,
        contexts=options.contexts,
        rounds=options.rounds,
        passes=options.passes,
        seed=options.seed,
        contestants=options.contestants,
        kv_cache_dtype=options.kv_cache_dtype,
        scenarios=options.scenarios,
        interval_s=options.interval,
        lmcache_python=options.lmcache_python,
        latency_bound_s=options.latency_bound,
        disk_budget_bytes=options.disk_budget,
        prices=prices_given(options),
        html=options.html,
        samples=options.samples,
    )
