"""What loads and prefills take in each kind of engine: learned from traffic, kept in the store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.calibration import Calibration, Curves, read_calibration
from sessiond.domain.canonical import json_digest
from sessiond.domain.errors import InvalidInputError, SessiondError
from sessiond.domain.fingerprint import FieldClass
from sessiond.domain.samples import Tier
from sessiond.service.measured import load_sample, prefill_sample
from sessiond.service.planstate import Kind, Known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessiond.domain.canonical import JsonValue
    from sessiond.domain.engines import EngineInfo
    from sessiond.domain.samples import LoadSample, PrefillSample
    from sessiond.domain.timing import TurnTiming
    from sessiond.service.context import Context

_log = logging.getLogger(__name__)

#: Curves are fitted again after so long, because their samples have grown older.
_REFIT_S: Final = 60.0
#: Of the time that a fit takes: so long, samples are gathered before the next.
_REST: Final = 20.0


def kind_digest(engine: EngineInfo) -> str:
    """Return the name of an engine's kind: of what it computes, and on what."""
    bytes_digest = engine.fingerprint.digest(FieldClass.BYTES).hex()
    return json_digest([bytes_digest, engine.fingerprint.fields.get("platform")]).hex()


class Calibrator:
    """Used from the event loop; what takes long is done in threads.

    A fit takes tens of milliseconds, so a plan takes the curves of the last one and begins the
    next.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.plans

    async def see(self, engine: EngineInfo) -> Kind:
        """Return what is known of an engine's kind; its file is read at first sight.

        :param engine: one that is identified
        """
        known = self._state.engines.get(engine.engine_id)
        if known is None:
            digest = kind_digest(engine)
            known = Known(engine, self._state.kinds.setdefault(digest, Kind(digest)))
            self._state.engines[engine.engine_id] = known
        if not known.kind.is_loaded:
            await self._load(known.kind)
        self._refit_soon(known.kind)
        return known.kind

    def measured(self, known: Known, timing: TurnTiming) -> LoadSample | None:
        """Take in one request's timing; return the load in it."""
        now = self._context.now()
        load, prefill = load_sample(timing, known.engine, now), prefill_sample(timing, now)
        self._add(known.kind, load, prefill)
        return load

    def add_prefill(self, kind: Kind, sample: PrefillSample) -> None:
        """Take in a prefill that was measured on purpose."""
        self._add(kind, None, sample)

    def assume_rate(self, kind: Kind, bytes_per_s: float) -> None:
        """Reckon with this rate from disk until a load was measured."""
        loads = dict(kind.assumed.loads)
        loads[Tier.NVME] = replace(loads[Tier.NVME], bytes_per_s=bytes_per_s)
        kind.assumed = replace(kind.assumed, loads=loads)
        kind.is_unfitted = True
        self._refit_soon(kind)

    def forget_loads(self, kind: Kind, tier: Tier, before_unix_s: float) -> None:
        """Leave out what was measured before a tier has become faster."""
        kind.calibration = kind.calibration.without_loads(tier, before_unix_s)
        kind.is_unfitted = kind.is_unsaved = True
        self._refit_soon(kind)

    async def save(self) -> None:
        """Write what has changed; a file that cannot be written is tried again next time."""
        for kind in list(self._state.kinds.values()):
            if not kind.is_unsaved:
                continue
            kind.is_unsaved = False
            try:
                saved = await self._context.blocking(self._save, kind.digest, kind.calibration)
            except SessiondError as error:
                kind.is_unsaved = True
                _log.warning("a calibration was not kept: %s", error.message)
            else:
                self._learn(kind, saved)

    async def close(self) -> None:
        """Wait for the fits that run, and save; what rests before a fit may rest for long."""
        fits = [kind.fitting for kind in self._state.kinds.values() if kind.fitting]
        for fitting in fits:
            fitting.cancel()  # a thread ends its work all the same
        await asyncio.gather(*fits, return_exceptions=True)
        await self.save()

    async def settle(self) -> None:
        """Wait until the curves are those of all samples."""
        while fits := [kind.fitting for kind in self._state.kinds.values() if kind.fitting]:
            await asyncio.gather(*fits, return_exceptions=True)

    def _add(self, kind: Kind, load: LoadSample | None, prefill: PrefillSample | None) -> None:
        known = kind.calibration.as_of(self._context.now())
        if load is not None:
            known = known.with_load(load)
        if prefill is not None:
            known = known.with_prefill(prefill)
        if known is not kind.calibration:
            kind.calibration, kind.is_unfitted, kind.is_unsaved = known, True, True
            self._refit_soon(kind)

    def _save(self, digest: str, known: Calibration) -> Calibration:
        """Add what is known to what other daemons of the store have saved; return all of it."""
        merged = known

        def change(value: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue]:
            nonlocal merged
            found = self._understood(value)
            merged = known if found is None else found.merged_with(known)
            return merged.as_json()

        self._context.store.calibrations.revise(digest, change)
        return merged

    def _learn(self, kind: Kind, saved: Calibration) -> None:
        """Take in what other daemons have saved; more may have been measured meanwhile."""
        known = saved.merged_with(kind.calibration)
        if known != kind.calibration:
            kind.calibration, kind.is_unfitted = known, True
            self._refit_soon(kind)

    async def _load(self, kind: Kind) -> None:
        found = await self._context.blocking(self._read, kind.digest)
        if kind.is_loaded:
            return  # another one was quicker
        kind.is_loaded = True
        if found is not None:
            kind.calibration, kind.is_unfitted = found.merged_with(kind.calibration), True
            # The first plan is made with what is known: it waits for this fit.
            kind.curves = await self._context.blocking(self._fitted, kind)
            kind.fitted_unix_s, kind.is_unfitted = self._context.now(), False

    def _read(self, digest: str) -> Calibration | None:
        try:
            return self._understood(self._context.store.calibrations.read(digest))
        except SessiondError as error:
            _log.warning("a calibration is begun anew: %s", error.message)
            return None

    def _understood(self, value: Mapping[str, JsonValue] | None) -> Calibration | None:
        """Return what a file holds; ``None`` if that is nothing that we understand."""
        if value is None:
            return None
        try:
            reading = read_calibration(value)
        except InvalidInputError as error:
            _log.warning("a calibration is begun anew: %s", error.message)
            return None
        if reading.dropped:
            _log.warning("%d entries of a calibration are no samples", reading.dropped)
        return reading.calibration.as_of(self._context.now())

    def _refit_soon(self, kind: Kind) -> None:
        aged = self._context.now() - kind.fitted_unix_s >= _REFIT_S
        has_samples = bool(kind.calibration.loads or kind.calibration.prefills)
        if kind.fitting is None and (kind.is_unfitted or (aged and has_samples)):
            kind.fitting = asyncio.create_task(self._fit(kind))

    async def _fit(self, kind: Kind) -> None:
        try:
            while True:
                await asyncio.sleep(max(0.0, kind.rest_until_s - monotonic()))
                began_s, kind.is_unfitted = monotonic(), False
                kind.curves = await self._context.blocking(self._fitted, kind)
                kind.fitted_unix_s, ended_s = self._context.now(), monotonic()
                kind.rest_until_s = ended_s + _REST * (ended_s - began_s)
                if not kind.is_unfitted:
                    return
        finally:
            kind.fitting = None

    def _fitted(self, kind: Kind) -> Curves:
        return kind.calibration.curves(self._context.now(), kind.assumed)
