"""A short look at an engine of a new kind, so that its first plan is not made blind."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from sessiond.domain.errors import SessiondError, UnavailableError
from sessiond.domain.samples import PrefillSample, Tier

if TYPE_CHECKING:
    from sessiond.domain.engines import EngineInfo
    from sessiond.service.calibration import Calibrator
    from sessiond.service.context import Context
    from sessiond.service.planstate import Kind

_log = logging.getLogger(__name__)

_SHORT_TOKENS: Final = 64
_LONG_TOKENS: Final = 1024
#: The long request is made so short that it takes no longer, as far as the short one tells.
_LONGEST_S: Final = 1.0
_DEADLINE_S: Final = 30.0
#: Every vocabulary has these.
_FIRST_TOKEN: Final = 16
_TOKENS: Final = 240


class FirstLook:
    """Two requests, after one to warm up, and one read of the store's device, for each kind once.

    It begins while an engine has nothing to do, and is given up when a turn or a resume comes.
    """

    def __init__(self, context: Context, calibrator: Calibrator, *, enabled: bool) -> None:
        self._context = context
        self._calibrator = calibrator
        self._enabled = enabled
        self._has_read = False

    async def run(self) -> None:
        """Look at engines that nothing is known of, and keep what was learned of all.

        :raises StoreError: the store cannot be read.
        """
        live = await self._context.engines.live()
        self._context.plans.keep(engine.engine_id for engine in live)
        self._context.observer.loads_paused(self._context.plans.paused_engines)
        for engine in live:
            if engine.is_identified:  # from now on, its turns are measured
                kind = await self._calibrator.see(engine)
                if self._enabled and engine.url and not engine.tier_off:
                    await self._look(engine, kind)
        await self._calibrator.save()

    async def _look(self, engine: EngineInfo, kind: Kind) -> None:
        if not kind.curves.loads[Tier.NVME].trust.samples and not self._has_read:
            self._has_read = True
            await self._read(kind)
        if kind.calibration.prefills or kind.is_looked_at or not await self._is_idle(engine):
            return
        looking = asyncio.create_task(self._ask(engine, kind))
        self._context.plans.looking[engine.engine_id] = looking
        try:
            await asyncio.wait((looking,))
            if not looking.cancelled():
                looking.result()
                kind.is_looked_at = True
        except SessiondError as error:
            kind.is_looked_at = True  # its turns will tell
            _log.warning("an engine could not be measured: %s", error.message)
        finally:
            looking.cancel()
            self._context.plans.looking.pop(engine.engine_id, None)

    async def _read(self, kind: Kind) -> None:
        try:
            rate = await self._context.blocking(self._context.store.read_rate)
        except SessiondError as error:
            _log.warning("the store's device could not be measured: %s", error.message)
            return
        self._calibrator.assume_rate(kind, rate)

    async def _is_idle(self, engine: EngineInfo) -> bool:
        context = self._context
        if context.streams.running(engine.url) or context.resume_queue.length(engine.engine_id):
            return False
        with suppress(UnavailableError):
            return not await context.client.requests_running(engine.url)
        return False

    async def _ask(self, engine: EngineInfo, kind: Kind) -> None:
        """Have two prompts of nobody's computed; without a ticket, nothing of them is kept."""
        await self._prefill(engine, _SHORT_TOKENS)  # a fresh engine's first one takes longer
        short_s = await self._prefill(engine, _SHORT_TOKENS)
        self._add(kind, _SHORT_TOKENS, short_s)
        longest = min(_LONG_TOKENS, engine.max_model_tokens // 2)
        affordable = int(_SHORT_TOKENS * _LONGEST_S / short_s)
        tokens = max(2 * _SHORT_TOKENS, min(longest, affordable))
        self._add(kind, tokens, await self._prefill(engine, tokens))

    def _add(self, kind: Kind, tokens: int, seconds: float) -> None:
        self._calibrator.add_prefill(kind, PrefillSample(self._context.now(), 0, tokens, seconds))

    async def _prefill(self, engine: EngineInfo, tokens: int) -> float:
        prompt = [_FIRST_TOKEN + secrets.randbelow(_TOKENS) for _ in range(tokens)]
        body = {
            "model": engine.model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": f"sessiond-look-{secrets.token_hex(16)}",
        }
        began_s = monotonic()
        await self._context.client.post(f"{engine.url}/v1/completions", body, _DEADLINE_S)
        return max(1e-6, monotonic() - began_s)
