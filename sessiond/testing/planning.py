"""Curves that are well known, and the worked example of a plan."""

from __future__ import annotations

from typing import Final

from sessiond.domain.calibration import Curves
from sessiond.domain.curves import ASSUMED_LOADS, LoadCurve, PrefillCurve, Trust
from sessiond.domain.plans import Plan, PlanInputs, Span
from sessiond.domain.reasons import Reason
from sessiond.domain.samples import Tier

MIB: Final = 1 << 20
GIB: Final = 1 << 30

#: Of a curve that many new samples of all sizes were fitted to.
WELL_KNOWN: Final = Trust(samples=64, weight=64.0, spread=0.05)


def load_curve(
    tier: Tier, fixed_s: float, bytes_per_s: float, trust: Trust = WELL_KNOWN
) -> LoadCurve:
    """Return the curve of a tier that is as fast beside others as alone."""
    return LoadCurve(tier, fixed_s, bytes_per_s, trust=trust, most_bytes=1 << 50)


def prefill_curve(fixed_s: float, per_token_s: float, per_token2_s: float) -> PrefillCurve:
    """Return the curve of an engine that is as fast beside others as alone."""
    return PrefillCurve(
        fixed_s, per_token_s, per_token2_s, trust=WELL_KNOWN, least_tokens=1, last_token=1 << 30
    )


def curves(prefill: PrefillCurve, *loads: LoadCurve) -> Curves:
    """Return what a plan reckons with; the last curve of a tier counts."""
    return Curves({**ASSUMED_LOADS, **{curve.tier: curve for curve in loads}}, prefill)


def worked_example(bytes_per_s: float, trust: Trust = WELL_KNOWN) -> PlanInputs:
    """Return 256 MiB on a disk with 4 ms of lookup, and 60 ms to compute the same."""
    disk = load_curve(Tier.NVME, 0.004, bytes_per_s, trust)
    span = Span(Tier.NVME, 8192, 256 * MIB)
    return PlanInputs(8192, 256, (span,), curves(prefill_curve(0.060, 0.0, 0.0), disk))


#: One context in VRAM, in RAM, on disk and nowhere: 8 chunks of 1,000 tokens.
MIXED: Final = PlanInputs(
    8000,
    1000,
    (Span(Tier.VRAM, 1000, 0), Span(Tier.RAM, 3000, 20 * MIB), Span(Tier.NVME, 7000, 400 * MIB)),
    curves(
        prefill_curve(0.01, 0.0001, 0.0),
        load_curve(Tier.RAM, 0.001, 4 * GIB),
        load_curve(Tier.NVME, 0.004, 2 * GIB),
    ),
)


def reasons(plan: Plan) -> list[Reason]:
    """Return why the plan does not load everything."""
    return [cause.reason for cause in plan.causes]
