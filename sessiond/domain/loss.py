"""What lossy storage of KV has lost, as it was measured when it was written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: The fingerprint's field that says how an engine stores KV with loss; it has none without.
LOSSY_FIELD = "lossy"
#: Below 8 bits a number nothing is offered. Such a way would need a warning beyond 100,000 tokens.
FP8 = "fp8"
LOSSY_WAYS = (FP8,)


@dataclass(frozen=True)
class RelativeError:
    """How far numbers are from what they were, relative to their size."""

    rms: float  #: the root of the mean square of the differences, to that of the numbers
    largest: float  #: the largest difference, to the largest number


@dataclass(frozen=True)
class Loss:
    """How far some numbers are from what they were: sums and extremes, so that parts add up."""

    error_squares: float = 0.0  #: the sum of the squares of the differences
    squares: float = 0.0  #: the sum of the squares of the numbers
    largest_error: float = 0.0
    largest: float = 0.0  #: the largest number, without its sign

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            self.error_squares + other.error_squares,
            self.squares + other.squares,
            max(self.largest_error, other.largest_error),
            max(self.largest, other.largest),
        )

    @property
    def is_possible(self) -> bool:
        """Whether these are sums of squares and sizes."""
        values = (self.error_squares, self.squares, self.largest_error, self.largest)
        return all(0 <= value < math.inf for value in values)

    @property
    def relative(self) -> RelativeError:
        """The same in relation to the numbers' size."""
        return RelativeError(
            math.sqrt(self.error_squares / self.squares) if self.squares else 0.0,
            self.largest_error / self.largest if self.largest else 0.0,
        )


#: Of one chunk: of K and of V, or of both together where they cannot be told apart.
ChunkLoss: TypeAlias = tuple[Loss, ...]
_NAMES = {1: ("kv",), 2: ("k", "v")}
MOST_PARTS = max(_NAMES)


def alike(losses: Sequence[ChunkLoss]) -> list[ChunkLoss]:
    """Return the same losses, each in as many parts as the coarsest of them.

    A snapshot shares chunks of earlier ones. Who wrote those may have known less of where K and
    V lie. What lost nothing has no parts of its own.
    """
    parts = min((len(loss) for loss in losses if loss), default=1)
    return [loss if len(loss) == parts else (sum(loss, Loss()),) * parts for loss in losses]


@dataclass(frozen=True)
class SnapshotLoss:
    """That a snapshot is lossy, and what was measured of it."""

    way: str  #: one of :data:`LOSSY_WAYS`
    #: Of "k" and "v", or of "kv" where they cannot be told apart. Empty where writing it lost
    #: nothing: KV that was stored with loss before is stored again without any further.
    errors: Mapping[str, RelativeError]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SnapshotLoss:
        """Read one that was written as a JSON object; fields of later versions are left out."""
        errors = {
            name: RelativeError(error["rms"], error["largest"])
            for name, error in value["errors"].items()
        }
        return cls(str(value["way"]), errors)


def loss_of(way: str, chunks: Iterable[ChunkLoss]) -> SnapshotLoss:
    """Return what a snapshot's chunks have lost together.

    Chunks that lost nothing do not count: they would hide what others did.
    """
    lost = [parts for parts in chunks if any(part.error_squares for part in parts)]
    totals: list[Loss] = [sum(parts, Loss()) for parts in zip(*alike(lost), strict=True)]
    names = _NAMES.get(len(totals), ())
    return SnapshotLoss(
        way, {name: total.relative for name, total in zip(names, totals, strict=True)}
    )
