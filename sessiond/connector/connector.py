"""The connector that vLLM loads by name: translates its calls for the coordinator.

Scheduler side (in EngineCore): ``on_new_request``, ``get_num_new_matched_tokens``,
``update_state_after_alloc``, ``request_finished_all_groups``, ``reset_cache``.
Worker side: nothing of ours; copies are vLLM's own, or :mod:`sessiond.connector.copy_worker`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
    OffloadingConnector,
)
from vllm.v1.request import RequestStatus

from sessiond.connector import guard, leftovers, scratch
from sessiond.connector.announcer import Announcer
from sessiond.connector.coordinator import Coordinator
from sessiond.connector.digests import DigestCache
from sessiond.connector.fingerprint import read_fingerprint
from sessiond.connector.guard import guarded
from sessiond.connector.headbook import HeadBook
from sessiond.connector.limits import Limits
from sessiond.connector.manager import SessionOffloadingManager
from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.mover.memory import divide
from sessiond.connector.refusals import require_supported_engine, weights_may_change
from sessiond.connector.requests import ArrivingRequest, FinishedRequest
from sessiond.connector.settings import ConnectorSettings
from sessiond.connector.spec import SessionOffloadingSpec
from sessiond.connector.versions import vllm_version
from sessiond.domain.engines import EngineInfo
from sessiond.domain.ids import EngineId, new_hex_id
from sessiond.domain.keys import KeyRing
from sessiond.domain.reasons import Cause, Reason
from sessiond.domain.tokens import token_ids
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = logging.getLogger("vllm.sessiond.connector")

# Heads are kept while their KV may still be in VRAM or RAM, with room for what comes and goes.
_HEAD_TOKENS_PER_KV_TOKEN = 4
_RESET = Cause(Reason.TIER_OFF, "the engine's caches were reset")


class SessionConnector(OffloadingConnector):
    """vLLM's offloading connector, with sessions."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        require_supported_engine(vllm_config, kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)
        scratch.hold()
        self._coordinator: Coordinator | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._start(vllm_config, kv_cache_config)

    def on_new_request(self, request: Request) -> None:
        """Read the request's ticket, then as vLLM's."""
        self._arrive(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """As vLLM's, unless the request has to wait for us: ``(None, False)``."""
        if not self._may_match(request, num_computed_tokens):
            return None, False
        tokens, load_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens is not None and not self._matched(request, num_computed_tokens, tokens):
            return None, False
        return tokens, load_async

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """As vLLM's; note where the prompt's KV came from."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._scheduled(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """As vLLM's; a step without work waits a moment for the mover."""
        metadata = super().build_connector_meta(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens == 0:
            self._rest()
        return metadata

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM's, and our part of the answer."""
        delay_free, params = super().request_finished_all_groups(request, block_ids)
        ours = self._finish(request)
        if ours is None:
            return delay_free, params
        return delay_free, {**(params or {}), **ours}

    def reset_cache(self) -> bool | None:
        """As vLLM's; the weights may have changed, so the tier goes off until a restart."""
        if not self._turn_off() and self._coordinator is not None:
            self._coordinator.tier_off = _RESET  # whatever failed: it is off all the same
        return super().reset_cache()

    # --- guarded insides -----------------------------------------------------------------

    @guarded(None)
    def _arrive(self, request: Request) -> None:
        if self._coordinator is None or not request.kv_transfer_params:
            return
        adapter = request.lora_request.lora_name if request.lora_request else None
        self._coordinator.arrive(
            ArrivingRequest(
                request_id=request.request_id,
                tokens=token_ids(request.all_token_ids),
                kv_transfer_params=request.kv_transfer_params,
                cache_salt=request.cache_salt,
                adapter=adapter,
                plain_text=not request.mm_features and request.prompt_embeds is None,
            )
        )

    @guarded(True)  # noqa: FBT003 - the value returned instead of raising
    def _may_match(self, request: Request, vram_tokens: int) -> bool:
        if self._coordinator is None:
            return True
        return self._coordinator.may_match(request.request_id, vram_tokens)

    @guarded(True)  # noqa: FBT003 - the value returned instead of raising
    def _matched(self, request: Request, vram_tokens: int, external_tokens: int) -> bool:
        if self._coordinator is None:
            return True
        return self._coordinator.matched(request.request_id, vram_tokens, external_tokens)

    @guarded(None)
    def _scheduled(self, request: Request, external_tokens: int) -> None:
        if self._coordinator is not None:
            self._coordinator.scheduled(request.request_id, external_tokens)

    @guarded(None)
    def _rest(self) -> None:
        if self._coordinator is not None:
            self._coordinator.rest()

    @guarded(None)
    def _finish(self, request: Request) -> dict[str, Any] | None:
        if self._coordinator is None or not request.kv_transfer_params:
            return None
        return self._coordinator.finish(
            FinishedRequest(
                request_id=request.request_id,
                tokens=token_ids(request.all_token_ids),
                computed_tokens=max(0, request.num_computed_tokens - request.num_in_flight_tokens),
                aborted=request.status is RequestStatus.FINISHED_ABORTED,
                preemptions=request.num_preemptions,
            )
        )

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _turn_off(self) -> bool:
        if self._coordinator is not None:
            self._coordinator.turn_off(_RESET)
        return True

    # --- start ---------------------------------------------------------------------------

    def _start(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        began_s = time.monotonic()
        manager = self.scheduler.manager
        assert isinstance(manager, SessionOffloadingManager)
        tier = manager.snapshot_tier
        spec = tier.spec
        assert isinstance(spec, SessionOffloadingSpec)
        settings = ConnectorSettings.from_extra_config(spec.extra_config)
        guard.inject(settings.raise_in)
        keys = KeyRing.from_server_key(load_server_key(settings.key_file, create=True))
        store = Store.open(settings.root, keys)
        _clean_up_after_dead_engines(store)
        cache = DigestCache(settings.root / "cache" / "digests.json")
        fingerprint = read_fingerprint(vllm_config, kv_cache_config, spec, cache)
        info = EngineInfo(
            engine_id=EngineId(new_hex_id()),
            url=settings.url,
            model=_served_name(vllm_config),
            pid=os.getpid(),
            started_unix_s=time.time(),
            heartbeat_unix_s=time.time(),
            fingerprint=fingerprint,
            chunk_tokens=spec.tokens_per_block[0] * spec.blocks_per_chunk,
            chunk_bytes=spec.kv_bytes_per_chunk,
            ram_tier_chunks=spec.num_chunks,
            max_model_tokens=vllm_config.model_config.max_model_len,
            vllm_version=vllm_version(),
            shared_files=tuple(leftovers.mapped_by(leftovers.family_of_this_process())),
        )
        announcer = Announcer(store, info)
        self._coordinator = _coordinator(
            info, settings, keys, _head_limit_tokens(info, kv_cache_config), spec.region_fd
        )
        self._coordinator.on_tier_off = announcer.tier_off
        ways = weights_may_change(vllm_config)
        if ways and not settings.allow_weight_updates:
            cause = Cause(Reason.TIER_OFF, f"weights may change in place: {ways}")
            self._coordinator.turn_off(cause)
        tier.attach(self._coordinator)
        logger.info(
            "sessiond: engine %s is ready in %.2f s: chunks of %d tokens (%d bytes), %d in RAM",
            info.engine_id,
            time.monotonic() - began_s,
            info.chunk_tokens,
            info.chunk_bytes,
            info.ram_tier_chunks,
        )


def _clean_up_after_dead_engines(store: Store) -> None:
    for dead in store.dead_engines():
        removed = leftovers.reclaim(dead.shared_files)
        if removed:
            logger.info("sessiond: removed what engine %s left: %s", dead.engine_id, removed)
    store.remove_dead_engines()
    store.sweep_tmp()


def _coordinator(
    info: EngineInfo,
    settings: ConnectorSettings,
    keys: KeyRing,
    head_limit_tokens: int,
    region_fd: int,
) -> Coordinator:
    # Refused here, with the engine's start, and not by a mover that ends again and again.
    divide(
        settings.mover_memory_bytes, info.chunk_bytes, settings.read_threads, settings.write_threads
    )
    hello = protocol.Hello(
        root=str(settings.root),
        key_file=str(settings.key_file),
        engine_id=info.engine_id,
        fingerprint=dict(info.fingerprint.fields),
        chunk_tokens=info.chunk_tokens,
        chunk_bytes=info.chunk_bytes,
        region_chunks=info.ram_tier_chunks,
        codec=settings.codec,
        item_bytes=_item_bytes(info),
        read_threads=settings.read_threads,
        write_threads=settings.write_threads,
        memory_bytes=settings.mover_memory_bytes,
        segment_limit_bytes=settings.segment_limit_bytes,
        floor_bytes=settings.free_space_floor_bytes,
    )
    limits = Limits(
        chunk_tokens=info.chunk_tokens,
        ram_chunks=info.ram_tier_chunks,
        plan_deadline_s=settings.plan_deadline_s,
        job_deadline_s=settings.job_deadline_s,
        hold_deadline_s=settings.hold_deadline_s,
    )
    heads = HeadBook(info.engine_id, head_limit_tokens)
    return Coordinator(
        info.engine_id, keys.ticket_key, limits, heads, lambda: MoverClient(hello, region_fd)
    )


def _head_limit_tokens(info: EngineInfo, kv_cache_config: KVCacheConfig) -> int:
    block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    vram_tokens = kv_cache_config.num_blocks * block_tokens
    ram_tokens = info.ram_tier_chunks * info.chunk_tokens
    return _HEAD_TOKENS_PER_KV_TOKEN * (vram_tokens + ram_tokens)


def _item_bytes(info: EngineInfo) -> int:
    """Return the size of the numbers that KV consists of; 8-bit kinds have many names."""
    name = str(info.fingerprint.fields["kv_dtype"])
    return {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}.get(name, 1)


def _served_name(vllm_config: VllmConfig) -> str:
    name = vllm_config.model_config.served_model_name
    if isinstance(name, list):
        return str(name[0])
    return str(name or vllm_config.model_config.model)
