"""What one ticketed request took until it was ready: measured in the engine, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sessiond.domain.canonical import JsonValue
from sessiond.domain.errors import InvalidInputError

#: Counts are kept as integers of 63 bits.
_LARGEST_COUNT: Final = (1 << 63) - 1


@dataclass(frozen=True)
class TurnTiming:
    """The stages do not overlap: the first five together are :attr:`ready_s`.

    By the monotonic clock of EngineCore, from the request's arrival there. A stage that did not
    take place is 0, such as :attr:`load_s` for a prompt whose KV is in VRAM.
    """

    lookup_s: float = 0.0  #: until the mover had said what can be loaded, if that was waited for
    queue_s: float = 0.0  #: waiting for room in the RAM tier
    load_s: float = 0.0  #: first chunk asked for, from disk or RAM, to KV in VRAM
    #: In vLLM's own queue, and for steps of others; and what a preemption undid.
    waiting_s: float = 0.0
    #: The first step that computes for it to the first token; 0 if there was none.
    prefill_s: float = 0.0
    ready_s: float = 0.0  #: arrival to the first token, or to the end without one
    #: Of the load, added over the mover's threads, which overlap: waiting for the device.
    read_s: float = 0.0
    decode_s: float = 0.0  #: likewise: verifying and decoding
    read_bytes: int = 0  #: stored bytes that were read for it
    ram_tokens: int = 0  #: of the prompt, from RAM
    disk_tokens: int = 0  #: of the prompt, from disk
    prefill_from_token: int = 0  #: before it, nothing was computed
    prefill_to_token: int = 0  #: the end of what :attr:`prefill_s` computed
    #: How many other requests ran while it was loaded and computed: the mean over that time.
    others_running: float = 0.0

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in files, answers and events."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> TurnTiming:
        """Read what :meth:`as_json` wrote; what a later version added is left out.

        :raises InvalidInputError: a field is missing, or no duration or count.
        """
        if not isinstance(value, Mapping):
            raise InvalidInputError("A timing is no JSON object.")
        found = {one.name: _read(one.name, value.get(one.name)) for one in fields(cls)}
        timing = cls(**found)
        if timing.prefill_to_token < timing.prefill_from_token:
            raise InvalidInputError("A timing's prefill ends before it begins.")
        return timing


def timing_of(value: object) -> TurnTiming | None:
    """Return the timing that an answer or an event tells; ``None`` if it tells none."""
    try:
        return TurnTiming.from_json(value)
    except InvalidInputError:
        return None


_COUNTS: Final = frozenset(one.name for one in fields(TurnTiming) if one.type == "int")


def _read(name: str, value: Any) -> Any:  # noqa: ANN401 - what JSON holds; a number
    """Return a count as an integer, everything else as a float."""
    wanted = int if name in _COUNTS else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise InvalidInputError(f"A timing's '{name}' is no number.")
    if not 0 <= value <= _LARGEST_COUNT:  # not a number is neither
        raise InvalidInputError(f"A timing's '{name}' is out of range.")
    return value if name in _COUNTS else float(value)
