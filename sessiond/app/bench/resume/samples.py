"""All that was measured, one arrival each."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sessiond.app.bench.resume.usage import Memory, Work

#: Beside the scenarios: what sessions did before they went away.
FIRST_TURN, WARM_TURN, PREPARED = "first-turn", "warm-turn", "prepared"


@dataclass(frozen=True)
class Sample:
    """One turn to its first token."""

    series: str  #: of whom, or which way
    scenario: str
    session: str
    tokens: int
    seconds: float
    cached_tokens: int
    cpu_s: float = 0.0  #: of all processes, meanwhile; 0 where arrivals may overlap
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class ColdStart:
    """What a restarted engine took before it counts as warmed up."""

    contestant: str
    start_s: float  #: until it answers
    first_request_s: float  #: of a short prompt
    first_arrival_s: float  #: of a session of the shortest context


@dataclass
class Found:
    """The run so far."""

    samples: list[Sample] = field(default_factory=list)
    cold_starts: list[ColdStart] = field(default_factory=list)
    #: Of a session, by contestant: bytes on disk, and the seconds until they were there.
    stored_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    store_s: dict[str, dict[str, float]] = field(default_factory=dict)
    #: The device's, just before each arrival, by contestant.
    device_bytes_s: dict[str, dict[str, float]] = field(default_factory=dict)
    #: By contestant and scenario, with what was between arrivals.
    work: dict[str, dict[str, Work]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)  #: sessions that were still there
    competition_bytes: dict[str, Work] = field(default_factory=dict)
    tokens_checked: int = 0
    page_cache_dropped: bool = True  #: by the kernel, all of it
    skipped: dict[str, str] = field(default_factory=dict)  #: why
    effect: dict[str, Any] | None = None  #: of an FP8 KV cache on tokens

    def seconds(self, series: str, scenario: str, tokens: int | None = None) -> list[float]:
        """Return the samples of one row."""
        return [one.seconds for one in self.select(series, scenario, tokens)]

    def select(self, series: str, scenario: str, tokens: int | None = None) -> list[Sample]:
        """Return the samples of one row; of all contexts without *tokens*."""
        return [
            one
            for one in self.samples
            if (one.series, one.scenario) == (series, scenario) and tokens in (None, one.tokens)
        ]

    def rows(self) -> list[tuple[str, str, int]]:
        """Return series, scenario and tokens of all rows, in the order of their first sample."""
        return list(dict.fromkeys((one.series, one.scenario, one.tokens) for one in self.samples))


def write_csv(path: Path, samples: Iterable[Sample]) -> None:
    """Write all samples into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Sample)])
        writer.writeheader()
        writer.writerows(map(asdict, samples))
