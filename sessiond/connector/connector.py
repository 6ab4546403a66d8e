"""The connector that vLLM loads by name: translates its calls for the coordinator.

Scheduler side (in EngineCore): ``on_new_request``, ``get_num_new_matched_tokens``,
``update_state_after_alloc``, ``build_connector_meta``, ``take_events``,
``request_finished_all_groups``, ``reset_cache``.
Worker side: ``get_handshake_metadata``; copies are vLLM's own, or
:mod:`sessiond.connector.copy_worker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (
    OffloadingConnector,
)
from vllm.v1.request import RequestStatus

from sessiond.connector import scratch
from sessiond.connector.adapters import AdapterBook, module_of
from sessiond.connector.attest import RESET_UNCLEAR
from sessiond.connector.coordinator import Coordinator
from sessiond.connector.guard import guarded
from sessiond.connector.identity import Identity
from sessiond.connector.manager import SessionOffloadingManager
from sessiond.connector.refusals import require_supported_engine
from sessiond.connector.requests import ArrivingRequest, FinishedRequest
from sessiond.connector.spec import SessionOffloadingSpec
from sessiond.connector.starting import start
from sessiond.connector.workers import WorkerFacts, merged, read_worker
from sessiond.domain.engines import ServedAdapter
from sessiond.domain.tokens import token_ids

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorHandshakeMetadata,
        KVConnectorMetadata,
    )
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


class SessionConnector(OffloadingConnector):
    """vLLM's offloading connector, with sessions."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        require_supported_engine(vllm_config, kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)
        scratch.hold()
        self._coordinator: Coordinator | None = None
        self._adapters: AdapterBook
        self._identity: Identity
        if role == KVConnectorRole.SCHEDULER:
            self._start(vllm_config, kv_cache_config)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """In a worker: tell the scheduler what it has resolved and loaded."""
        return self._tell() or super().get_handshake_metadata()

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """As vLLM's; with this everything is there that makes the fingerprint."""
        super().set_xfer_handshake_metadata_pp_aware(metadata)
        self._identify(metadata)

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
        self._step_begins(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens == 0:
            self._rest()
        return metadata

    def take_events(self) -> Iterable[KVCacheEvent]:
        """As vLLM's, which asks after the output of each step."""
        self._step_ended()
        return super().take_events()

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
        """As vLLM's; the weights may have changed, so the tier goes off."""
        if not self._turn_off() and self._coordinator is not None:
            self._coordinator.tier.off = RESET_UNCLEAR  # whatever failed: it is off all the same
        return super().reset_cache()

    # --- guarded insides -----------------------------------------------------------------

    @guarded(None)
    def _tell(self) -> WorkerFacts:
        return read_worker(self._vllm_config)

    @guarded(None)
    def _identify(self, told: Mapping[tuple[int, int], object]) -> None:
        if self._coordinator is not None:
            self._identity.take(merged(told))
            self._coordinator.poll()

    @guarded(None)
    def _arrive(self, request: Request) -> None:
        if self._coordinator is None:
            return
        adapter = _proved(self._adapters, request) if request.lora_request else None
        if not request.kv_transfer_params:
            return
        self._coordinator.arrive(
            ArrivingRequest(
                request_id=request.request_id,
                tokens=token_ids(request.all_token_ids),
                kv_transfer_params=request.kv_transfer_params,
                cache_salt=request.cache_salt,
                adapter=adapter,
                plain_text=not request.mm_features and request.prompt_embeds is None,
                computed=partial(_computed_tokens, request),
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
            counted_tokens = _counted_tokens(request)
            self._coordinator.scheduled(request.request_id, external_tokens, counted_tokens)

    @guarded(None)
    def _rest(self) -> None:
        if self._coordinator is not None:
            self._coordinator.rest()

    @guarded(None)
    def _step_begins(self, scheduled: SchedulerOutput) -> None:
        if self._coordinator is not None:
            self._coordinator.steps.began(scheduled.num_scheduled_tokens)

    @guarded(None)
    def _step_ended(self) -> None:
        if self._coordinator is not None:
            self._coordinator.steps.ended()

    @guarded(None)
    def _finish(self, request: Request) -> dict[str, Any] | None:
        if self._coordinator is None or not request.kv_transfer_params:
            return None
        return self._coordinator.finish(
            FinishedRequest(
                request_id=request.request_id,
                tokens=token_ids(request.all_token_ids),
                computed_tokens=_computed_tokens(request),
                aborted=request.status is RequestStatus.FINISHED_ABORTED,
                preemptions=request.num_preemptions,
            )
        )

    @guarded(False)  # noqa: FBT003 - the value returned instead of raising
    def _turn_off(self) -> bool:
        if self._coordinator is not None:
            self._coordinator.caches_reset(emptied=_is_empty(self._kv_cache_manager))
        return True

    # --- start ---------------------------------------------------------------------------

    def _start(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        manager = self.scheduler.manager
        assert isinstance(manager, SessionOffloadingManager)
        spec = manager.snapshot_tier.spec
        assert isinstance(spec, SessionOffloadingSpec)
        started = start(vllm_config, kv_cache_config, spec)
        self._adapters, self._identity = started.adapters, started.identity
        self._coordinator = started.coordinator
        manager.snapshot_tier.attach(started.coordinator)


def _counted_tokens(request: Request) -> int | None:
    """Return what vLLM is to tell as the request's ``cached_tokens``; ``None``: it has told."""
    stats = request.prefill_stats
    return stats.num_cached_tokens if stats and not request.num_preemptions else None


def _proved(adapters: AdapterBook, request: Request) -> ServedAdapter | None:
    """Return what is proved of a request's adapter; nothing of a call that is none of ours."""
    assert request.lora_request is not None
    module = module_of(request.lora_request)
    if not (request.kv_transfer_params or request.cache_salt):
        adapters.meet(module)  # so that sessiond knows it before the first ticket
        return None
    # The gateway gives a salt to every call, also to those without a session.
    adapter = adapters.look(module)
    if not adapter.digest:
        # vLLM finds its KV by the adapter's name and path, which other weights may have now.
        request.skip_reading_prefix_cache = True
    return adapter


def _computed_tokens(request: Request) -> int:
    """Return how many tokens' KV is there, as far as outputs have come."""
    return max(0, request.num_computed_tokens - request.num_in_flight_tokens)


def _is_empty(kv_cache_manager: KVCacheManager | None) -> bool:
    """Whether no block in VRAM can be found again: a reset fails while a request holds some."""
    if kv_cache_manager is None:
        return False
    return len(kv_cache_manager.block_pool.cached_block_hash_to_block) == 0
