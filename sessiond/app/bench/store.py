"""``sessiond bench store``: the store beside the device, and beside what others use."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessiond.app.bench import figures
from sessiond.app.bench.contest import Contest, Tally
from sessiond.app.bench.device import Device
from sessiond.app.bench.kv import KvSource
from sessiond.app.bench.machine import describe_machine, versions
from sessiond.app.bench.ours import Ours
from sessiond.app.bench.region import Region, windows
from sessiond.app.bench.rivals import MANY_JOBS_CHUNKS, Safetensors, VllmFs
from sessiond.app.bench.stage import own_folder
from sessiond.app.trials import Say
from sessiond.domain.errors import ConfigurationError

CODECS = ("raw", "planar-zstd", "zstd", "auto")
DEFAULT_CODECS = CODECS[:3]
#: What is on disk at once, as a multiple of a window: every contestant's files.
_DISK_PER_WINDOW = 7


@dataclass(frozen=True)
class StoreOptions:
    """What is measured."""

    folder: Path  #: files are made in a folder of their own in it
    size_bytes: int = 2 * 10**9
    window_bytes: int = 2 * 10**9  #: the RAM region, and the longest session
    rounds: int = 5
    codecs: tuple[str, ...] = DEFAULT_CODECS
    read_threads: int | None = None  #: of the mover; its default otherwise
    drop_page_cache: bool = True  #: where the system allows it


@dataclass(frozen=True)
class Scope:
    """What is moved in one round."""

    source: KvSource
    chunks: int
    slots: int

    @property
    def raw_bytes(self) -> int:
        """Bytes of all chunks."""
        return self.chunks * self.source.chunk_bytes

    def described(self) -> dict[str, Any]:
        """Return it for the report."""
        return {
            "description": self.source.description,
            "raw_bytes": self.raw_bytes,
            "chunks": self.chunks,
            "distinct_chunks": min(self.chunks, self.source.distinct_chunks),
            "chunk_bytes": self.source.chunk_bytes,
            "session_chunks": self.slots,
        }


def measure(source: KvSource, options: StoreOptions, say: Say) -> dict[str, Any]:
    """Measure everything and return the report.

    :raises ConfigurationError: the options cannot be used, or the disk is too small.
    :raises WrongBytesError: what was restored is not what was stored.
    """
    scope = _scope(source, options)
    options.folder.mkdir(parents=True, exist_ok=True)
    _require_room(
        options.folder, source.chunk_bytes * (scope.slots * _DISK_PER_WINDOW + scope.chunks)
    )
    parts = windows(scope.chunks, scope.slots)
    with own_folder(options.folder, "store") as folder, ExitStack() as stack:
        contest = _contest(folder, scope, options, stack)
        contest.warm_up(parts[0])
        tallies = []
        for number in range(options.rounds):
            say(f"round {number + 1} of {options.rounds}")
            tallies.append(contest.round(number, parts, source))
        return _report(tallies, contest, scope, options)


def _scope(source: KvSource, options: StoreOptions) -> Scope:
    chunks = options.size_bytes // source.chunk_bytes
    slots = min(chunks, options.window_bytes // source.chunk_bytes)
    if slots < 1 or options.rounds < 1:
        raise ConfigurationError("There must be at least one chunk and one round.")
    unknown = sorted(set(options.codecs) - set(CODECS))
    if unknown or not options.codecs:
        raise ConfigurationError(f"The codecs are {', '.join(CODECS)}, not {unknown}.")
    return Scope(source, chunks, slots)


def _require_room(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ConfigurationError(
            f"{needed_bytes / 1e9:.1f} GB are needed below {folder}, {free_bytes / 1e9:.1f} GB "
            "are free; a smaller --window needs less."
        )


def _contest(folder: Path, scope: Scope, options: StoreOptions, stack: ExitStack) -> Contest:
    region = stack.enter_context(Region(scope.slots, scope.source.chunk_bytes))
    ours = [
        stack.enter_context(Ours(folder / codec, region, codec, options.read_threads))
        for codec in options.codecs
    ]
    fs = [
        stack.enter_context(closing(VllmFs(folder, region, job_chunks)))
        for job_chunks in (None, MANY_JOBS_CHUNKS)
    ]
    return Contest(
        region,
        Device(folder, region),
        ours,
        fs,
        Safetensors(folder, region),
        drop_page_cache=options.drop_page_cache,
    )


def _report(
    tallies: Sequence[Tally], contest: Contest, scope: Scope, options: StoreOptions
) -> dict[str, Any]:
    samples = {
        name: [scope.raw_bytes / tally.seconds[name] for tally in tallies]
        for name in tallies[0].seconds
    }
    last = tallies[-1]
    stored = {name: amount / scope.raw_bytes for name, amount in last.stored_bytes.items()}
    wanted = figures.ratios(figures.STORE_RATIOS, samples)
    if "planar-zstd" in stored:
        wanted["stored_vs_raw"] = stored["planar-zstd"]
    return {
        "kind": "store",
        "ratios": wanted,
        "further_ratios": figures.ratios(figures.FURTHER_STORE_RATIOS, samples),
        "bytes_s": {name: vars(figures.rate(values)) for name, values in samples.items()},
        "stored_vs_raw": stored,
        "open_s": dict(last.open_s),
        "mover_private_bytes": {one.name: one.private_bytes for one in contest.ours},
        "data": scope.described(),
        "rounds": options.rounds,
        "page_cache_dropped": all(tally.page_cache_dropped for tally in tallies),
        "vllm_fs_is_direct": contest.fs[0].is_direct,
        "machine": describe_machine(options.folder.absolute()),
        "versions": versions(),
    }
