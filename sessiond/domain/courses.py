"""How long each way to a ready prefix takes: so much loaded, the rest computed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile

from sessiond.domain.curves import LoadCurve
from sessiond.domain.estimates import NOTHING, Estimate
from sessiond.domain.plans import PlanInputs, Way
from sessiond.domain.samples import Tier


class Course:
    """A context, from its first token to the target, and the tiers that have it."""

    def __init__(self, inputs: PlanInputs) -> None:
        """Prepare the ways that the inputs allow."""
        self._inputs = inputs
        begins = [0, *(span.to_token for span in inputs.spans)]
        #: Each span with its first token.
        self.spans = tuple(zip(begins, inputs.spans, strict=False))
        #: What is in VRAM takes no load, and is never computed again.
        self.free_tokens = min(self._leading({Tier.VRAM}), inputs.target_tokens)
        self.resident_tokens = self._leading({Tier.VRAM, Tier.RAM})
        #: The prefixes that can be loaded, in ascending order.
        self.stops = self._stops()
        #: The longest of them; without any, what is in VRAM.
        self.end_token = self.stops[-1] if self.stops else self.free_tokens

    def load(self, stop: int) -> Estimate:
        """Return how long it takes until the prefix up to *stop* is loaded, the queue included."""
        return self._load(self._parts(stop))

    def way(self, stop: int) -> Way:
        """Return the way that loads up to *stop* and computes the rest."""
        inputs, parts = self._inputs, self._parts(stop)
        computes = stop < inputs.target_tokens
        # While a load runs, the engine's queue moves on.
        begin = self._load(parts).beside(inputs.engine_queue if computes else NOTHING)
        prefill = inputs.curves.prefill.estimate(stop, inputs.target_tokens, inputs.others)
        return Way(
            load_tokens=stop,
            ready=begin + prefill,
            lookup_s=self._lookup(parts)[1] if parts else 0.0,
            load_queue_s=inputs.load_queue.likely_s if parts else 0.0,
            read_s=sum((curve.read_s(size, inputs.others) for curve, size in parts), 0.0),
            stored_bytes=round(sum(size for _, size in parts)),
            engine_queue_s=inputs.engine_queue.likely_s if computes else 0.0,
            prefill_s=prefill.likely_s,
            prefill_from_token=stop,
            prefill_to_token=inputs.target_tokens,
        )

    def small_parts(self, begin: int, end: int) -> Iterator[int]:
        """Yield stops after *begin*: an eighth of the way to *end*, then ever nearer ones."""
        first, last = bisect_right(self.stops, begin), bisect_right(self.stops, end)
        count = math.ceil((last - first) / 8)
        while count:
            yield self.stops[first + count - 1]
            count //= 2

    def _parts(self, stop: int) -> list[tuple[LoadCurve, float]]:
        """Return what is read for a load up to *stop*: the curve and the bytes of each tier."""
        found: dict[Tier, float] = {}
        for begin, span in self.spans:
            tokens = min(stop, span.to_token) - begin
            if begin >= self.free_tokens and tokens > 0:
                part = tokens / (span.to_token - begin)
                found[span.tier] = found.get(span.tier, 0.0) + span.stored_bytes * part
        return [(self._inputs.curves.loads[tier], size) for tier, size in found.items()]

    def _load(self, parts: list[tuple[LoadCurve, float]]) -> Estimate:
        others = self._inputs.others
        if not parts:
            return NOTHING
        # All tiers are looked up at once; the slowest lookup counts.
        slowest, fixed_s = self._lookup(parts)
        total = self._inputs.load_queue
        for curve, stored_bytes in parts:
            seconds = curve.read_s(stored_bytes, others) + (fixed_s if curve is slowest else 0.0)
            total += curve.around(seconds, stored_bytes)
        return total

    def _lookup(self, parts: list[tuple[LoadCurve, float]]) -> tuple[LoadCurve, float]:
        times = [(curve, curve.lookup_s(self._inputs.others)) for curve, _ in parts]
        return max(times, key=lambda one: one[1])

    def _leading(self, tiers: set[Tier]) -> int:
        leading = takewhile(lambda span: span.tier in tiers, self._inputs.spans)
        return max((span.to_token for span in leading), default=0)

    def _stops(self) -> Sequence[int]:
        inputs = self._inputs
        stored = inputs.spans[-1].to_token if inputs.spans else 0
        after, end = self.free_tokens, min(stored, inputs.target_tokens)
        if not inputs.stops:
            chunk = inputs.chunk_tokens
            return range((after // chunk + 1) * chunk, end + 1, chunk)
        known = sorted(set(inputs.stops))
        return known[bisect_left(known, after + 1) : bisect_right(known, end)]
