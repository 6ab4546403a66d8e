"""From samples to what is reported."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sessiond.app.bench.figures import median_ratio, percentile
from sessiond.app.bench.resume.gates import VS_FLOOR, VS_FS, VS_LMCACHE, VS_RECOMPUTE
from sessiond.app.bench.resume.options import COLD, FS, LMCACHE, OURS, RECOMPUTE, VRAM
from sessiond.app.bench.resume.samples import FIRST_TURN, WARM_TURN, Found, Sample

_AGAINST: Mapping[str, str] = {VS_RECOMPUTE: RECOMPUTE, VS_FS: FS, VS_LMCACHE: LMCACHE}


def distribution(seconds: Sequence[float]) -> dict[str, float]:
    """Return the sample size, percentiles, and extremes of at least one value."""
    return {
        "count": len(seconds),
        "p50_s": percentile(seconds, 50),
        "p90_s": percentile(seconds, 90),
        "p99_s": percentile(seconds, 99),
        "mean_s": statistics.fmean(seconds),
        "least_s": min(seconds),
        "most_s": max(seconds),
    }


def distributions(found: Found) -> list[dict[str, Any]]:
    """Return every row: whose, in which scenario, with how many tokens.

    ``whole_from_kv`` counts those of which nothing but the tail was computed.
    """
    return [
        {
            "series": series,
            "scenario": scenario,
            "tokens": tokens,
            **distribution(found.seconds(series, scenario, tokens)),
            "whole_from_kv": sum(
                one.cached_tokens >= tokens for one in found.select(series, scenario, tokens)
            ),
        }
        for series, scenario, tokens in found.rows()
    ]


def main_series(found: Found) -> str:
    """Return the contestant whose resumes the report's ratios are about: the first of ours.

    :raises ValueError: none of ours took part
    """
    return next(name for name in OURS if name in found.stored_bytes)


def ratios(found: Found, series: str, tokens: int) -> dict[str, float | None]:
    """Return the medians of the ratios of the same sessions; ``None`` for what was not measured."""
    over = found.select(series, COLD, tokens)
    compared: dict[str, float | None] = {
        name: _ratio(over, _by_session(found.select(other, COLD, tokens)))
        for name, other in _AGAINST.items()
    }
    return {**compared, VS_FLOOR: _ratio(over, floors_s(found, series, tokens))}


def floors_s(found: Found, series: str, tokens: int) -> dict[str, float]:
    """Return by session: its time from VRAM, and its stored bytes at the device's read rate."""
    warm = _by_session(found.select(VRAM, COLD, tokens))
    stored = found.stored_bytes.get(series, {})
    rates = found.device_bytes_s.get(series, {})
    return {
        session: seconds + stored[session] / rates[session]
        for session, seconds in warm.items()
        if session in stored and session in rates
    }


def offload_on_vs_off(found: Found, tokens: int) -> dict[str, dict[str, float | None]]:
    """Return, by contestant, what a turn takes with its connector to one without any.

    Of a turn that is computed, and of one from VRAM: neither needs what was stored.
    """
    off = {FIRST_TURN: RECOMPUTE, WARM_TURN: VRAM}
    return {
        name: {
            turn: _ratio(
                found.select(name, turn, tokens), _by_session(found.select(series, COLD, tokens))
            )
            for turn, series in off.items()
        }
        for name in found.stored_bytes
    }


def stored_vs_raw(found: Found, series: str, token_bytes: int) -> float | None:
    """Return bytes on disk to KV bytes, of all sessions."""
    stored = found.stored_bytes.get(series, {})
    raw = sum(
        one.tokens * token_bytes for one in found.select(series, COLD) if one.session in stored
    )
    return sum(stored[one.session] for one in found.select(series, COLD)) / raw if raw else None


def _by_session(samples: Sequence[Sample]) -> dict[str, float]:
    return {one.session: one.seconds for one in samples}


def _ratio(over: Sequence[Sample], under_s: Mapping[str, float]) -> float | None:
    pairs = [(one.seconds, under_s[one.session]) for one in over if one.session in under_s]
    if not pairs:
        return None
    return median_ratio(*zip(*pairs, strict=True))
