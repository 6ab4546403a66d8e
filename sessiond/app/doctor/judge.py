"""What is wrong with a machine for restores, and what to do about it: pure rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sessiond.app.doctor.measured import STAGE_WORDS, Facts, Rates, Way
from sessiond.app.filesystems import is_remote

_GIB: Final = 1 << 30
_GB: Final = 1e9
#: A device that is slower makes loads slower than computing for most models.
_SLOW_READ_BYTES_S: Final = 0.2e9
#: A restore as a whole that is slower does, too.
_SLOW_RESTORE_BYTES_S: Final = 0.1e9
#: A commit waits for some syncs; an agent's turn should not notice.
_SLOW_SYNC_S: Final = 0.25
#: Locks and comparisons of times need clocks that agree.
_CLOCK_S: Final = 5.0
#: 2025: no clock that was set tells less.
_CLOCK_SET_UNIX_S: Final = 1_735_689_600.0
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_LAYERED: Final = frozenset({"overlay", "aufs"})


class Level(StrEnum):
    """How bad a finding is."""

    PROBLEM = "problem"
    NOTE = "note"  #: worth knowing; nothing has to be done


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    level: Level
    code: str
    sentence: str
    hint: str


def judge(facts: Facts, rates: Rates, ways: tuple[Way, ...]) -> tuple[Finding, ...]:
    """Return all findings, problems first.

    :param ways: the fastest first
    """
    found = [*_place(facts), *_room(facts), *_processor(facts), *_memory(facts), *_clock(facts)]
    found += [*_device(rates), *_restores(ways)]
    return tuple(sorted(found, key=lambda one: one.level is not Level.PROBLEM))


def _problem(code: str, sentence: str, hint: str) -> Finding:
    return Finding(Level.PROBLEM, code, sentence, hint)


def _note(code: str, sentence: str, hint: str) -> Finding:
    return Finding(Level.NOTE, code, sentence, hint)


def _place(facts: Facts) -> Iterator[Finding]:
    kind = facts.file_system
    if not facts.exists:
        yield _note(
            "no_store",
            "There is no store root yet; the folder above it was measured.",
            "'sessiond serve' makes it.",
        )
    elif not facts.is_ours:
        yield _problem(
            "not_private",
            "The store root is not this user's alone.",
            "Run as its owner, and 'chmod 700' it: others could read what agents wrote.",
        )
    if kind in _VOLATILE:
        yield _problem(
            "volatile",
            f"The store lies in memory ({kind}): a restart of the machine loses it.",
            "Put the store root on a drive.",
        )
    if kind in _LAYERED:
        yield _problem(
            "container_layer",
            f"The store lies in a container's own layer ({kind}): it goes with the container.",
            "Mount a volume of the host's drive at the store root.",
        )
    if is_remote(kind):
        yield _note(
            "remote",
            f"The store lies on {kind}, which adds the network, or another process, to each read.",
            "A local drive is faster.",
        )
    if not facts.direct_io and kind not in _VOLATILE:
        yield _problem(
            "no_direct_io",
            f"{kind} cannot read past the page cache, so reads take processor time and memory.",
            "Put the store root on ext4 or xfs.",
        )


def _room(facts: Facts) -> Iterator[Finding]:
    spare_bytes = facts.free_bytes - facts.floor_bytes
    if spare_bytes <= 0:
        yield _problem(
            "no_room",
            f"{facts.free_bytes / _GB:.1f} GB are free, and suspends leave "
            f"{facts.floor_bytes / _GB:.1f} GB so: nothing can be stored.",
            "Free space, or lower SESSIOND_FREE_SPACE_FLOOR_BYTES.",
        )
    elif spare_bytes < 2 * _GIB:
        yield _note(
            "little_room",
            f"Only {spare_bytes / _GB:.1f} GB can be stored before old snapshots go.",
            "Free space, or take a larger drive.",
        )


def _processor(facts: Facts) -> Iterator[Finding]:
    if facts.usable_cores < 2.0:
        yield _problem(
            "few_cores",
            f"This process may use {facts.usable_cores:g} of {facts.cores} cores: reading, "
            "decoding and the engine take turns.",
            "Raise the container's CPU limit, or the affinity, to 2 or more.",
        )
    elif facts.usable_cores < facts.cores:
        yield _note(
            "cpu_limit",
            f"This process may use {facts.usable_cores:g} of {facts.cores} cores, and the mover "
            "starts threads for all.",
            "Set 'read_threads' and 'write_threads' (sessiond engine --connector-setting), or "
            "raise the limit.",
        )
    if facts.load_average > 1.5 * facts.usable_cores:
        yield _note(
            "busy",
            f"The load average is {facts.load_average:.1f}: others were measured as well.",
            "Measure again while the machine is quiet.",
        )
    if facts.kernels != "numba":
        yield _note(
            "slow_kernels",
            "Numba is not installed here, so the planar codec is decoded more slowly.",
            "Install vLLM (which brings it) or Numba, where the engine runs.",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.huge_pages == "never":
        yield _problem(
            "no_huge_pages",
            "Transparent huge pages are off: direct reads reach a third of the device's rate.",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if facts.shm_free_bytes < _GIB:
        yield _note(
            "small_shm",
            f"{facts.shm_free_bytes / _GB:.2f} GB of shared memory are free, where an engine's "
            "RAM tier lies.",
            "In a container, give /dev/shm more ('--shm-size', or 'ipc: host').",
        )
    if facts.memory_free_bytes < _GIB:
        yield _note(
            "little_memory",
            f"{facts.memory_free_bytes / _GB:.2f} GB of memory are free.",
            "An engine that starts now gets a small RAM tier, if any.",
        )


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.now_unix_s < _CLOCK_SET_UNIX_S:
        yield _problem(
            "clock_not_set",
            "The clock was never set: ages, leases and timeouts depend on it.",
            "Start a time service (NTP).",
        )
    if abs(facts.clock_offset_s) > _CLOCK_S:
        yield _problem(
            "clocks_differ",
            f"The file system's clock is {facts.clock_offset_s:+.0f} s off this machine's.",
            "Set both by the same time service (NTP).",
        )


def _device(rates: Rates) -> Iterator[Finding]:
    if rates.read_bytes_s < _SLOW_READ_BYTES_S:
        yield _problem(
            "slow_device",
            f"The device reads {rates.read_bytes_s / _GB:.2f} GB/s: computing again is faster for "
            "most models.",
            "Put the store root on an NVMe drive, or look for who else uses this one.",
        )
    if rates.sync_s > _SLOW_SYNC_S:
        yield _problem(
            "slow_sync",
            f"A small file takes {rates.sync_s:.2f} s to be durable, and each commit waits for "
            "some.",
            "Look for who else writes to the device, or take a drive with a write cache that "
            "outlasts power failures.",
        )


def _restores(ways: tuple[Way, ...]) -> Iterator[Finding]:
    best = ways[0]
    if best.bytes_s < _SLOW_RESTORE_BYTES_S:
        yield _problem(
            "slow_restores",
            f"Restores reach {best.bytes_s / _GB:.2f} GB/s of KV at most; what limits them is "
            f"{STAGE_WORDS[best.bottleneck]}.",
            "Mend that first.",
        )
