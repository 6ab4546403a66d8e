"""Builds everything that the scheduler's side of the connector needs, when the engine starts."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sessiond.connector import guard, kvfacts, leftovers
from sessiond.connector.adapters import AdapterBook, lora_facts
from sessiond.connector.announcer import Announcer
from sessiond.connector.awaited import AwaitedMover, StartMover
from sessiond.connector.coordinator import Coordinator
from sessiond.connector.digests import DigestCache
from sessiond.connector.fingerprint import Facts, Files, read_facts
from sessiond.connector.frontend import Frontend, read_frontend
from sessiond.connector.headbook import HeadBook
from sessiond.connector.identity import Identity
from sessiond.connector.limits import Limits
from sessiond.connector.mover import protocol
from sessiond.connector.mover.client import MoverClient
from sessiond.connector.mover.memory import divide
from sessiond.connector.orphans import end_with_frontend
from sessiond.connector.refusals import weights_may_change
from sessiond.connector.settings import ConnectorSettings
from sessiond.connector.spec import SessionOffloadingSpec
from sessiond.connector.versions import vllm_version
from sessiond.connector.windows import keeps_replies
from sessiond.domain.engines import EngineInfo
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import EngineId, new_hex_id
from sessiond.domain.keys import KeyRing
from sessiond.domain.kvgroups import groups_of
from sessiond.domain.reasons import Cause, Reason
from sessiond.store.keyfile import load_server_key
from sessiond.store.store import Store

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = logging.getLogger("vllm.sessiond.connector")

# Heads are kept while their KV may still be in VRAM or RAM, with room for what comes and goes.
_HEAD_TOKENS_PER_KV_TOKEN = 4


@dataclass(frozen=True)
class Started:
    """What the connector works with."""

    coordinator: Coordinator
    adapters: AdapterBook
    identity: Identity  #: to be taken when the workers have told of their layers


def start(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, spec: SessionOffloadingSpec
) -> Started:
    """Build it. The engine's fingerprint is known only later; nothing waits for it.

    :raises SessiondError: the engine cannot be used as it is configured
    """
    began_s = time.monotonic()
    settings = ConnectorSettings.from_extra_config(spec.extra_config)
    guard.inject(settings.raise_in)
    keys = KeyRing.from_server_key(load_server_key(settings.key_file, create=True))
    store = Store.open(settings.root, keys)
    _clean_up_after_dead_engines(store)
    frontend = read_frontend()
    cache = DigestCache(settings.root / "cache" / "digests.json", keys)
    files = Files.find(vllm_config)
    read = read_facts(vllm_config, kv_cache_config, spec, files, frontend)
    facts = read.stored(settings.lossy)
    identity = Identity(files.parts(), cache, facts.complete, files.model.doubt)
    adapters = _adapter_book(settings, keys, vllm_config, frontend)
    info = _engine_info(vllm_config, kv_cache_config, spec, settings, adapters)
    announcer = Announcer(store, _without_tier(info, identity.pending))
    adapters.on_change = announcer.adapters_changed
    adapters.start()
    hello = _hello(info, settings, facts, kvfacts.half_bytes(kv_cache_config))
    coordinator = Coordinator(
        info.engine_id,
        keys.ticket_key,
        _limits(info, settings, facts),
        HeadBook(info.engine_id, _head_limit_tokens(info, kv_cache_config)),
        _awaited_mover(identity, hello, spec.region_fd, announcer),
    )
    coordinator.tier.on_change = announcer.tier_changed
    coordinator.tier.attestor.changed_files = cache.changed_files
    _judge_weights(vllm_config, settings, coordinator)
    end_with_frontend()
    _log_ready(info, time.monotonic() - began_s)
    return Started(coordinator, adapters, identity)


def _log_ready(info: EngineInfo, seconds: float) -> None:
    logger.info(
        "sessiond: engine %s is ready in %.2f s: chunks of %d tokens (%d bytes), %d in RAM",
        info.engine_id,
        seconds,
        info.chunk_tokens,
        info.chunk_bytes,
        info.ram_tier_chunks,
    )
    if info.lossy:
        logger.warning("sessiond: KV is stored with loss: lossy=%s", info.lossy)


def _without_tier(info: EngineInfo, cause: Cause) -> EngineInfo:
    return replace(info, tier_off=cause.detail, tier_off_reason=cause.reason.value)


def _judge_weights(
    vllm_config: VllmConfig, settings: ConnectorSettings, coordinator: Coordinator
) -> None:
    ways = weights_may_change(vllm_config)
    if ways and not settings.allow_weight_updates:
        coordinator.turn_off(Cause(Reason.TIER_OFF, f"weights may change in place: {ways}"))


def _adapter_book(
    settings: ConnectorSettings, keys: KeyRing, vllm_config: VllmConfig, frontend: Frontend
) -> AdapterBook:
    # A cache of its own: an adapter that changed is no reason to doubt the model's files.
    book = AdapterBook(
        DigestCache(settings.root / "cache" / "adapters.json", keys),
        lora_facts(vllm_config.lora_config),
        trusting=settings.allow_weight_updates,
    )
    if vllm_config.lora_config is not None:
        book.expect(frontend.lora_modules)
    return book


def _engine_info(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    spec: SessionOffloadingSpec,
    settings: ConnectorSettings,
    adapters: AdapterBook,
) -> EngineInfo:
    now_s = time.time()
    return EngineInfo(
        engine_id=EngineId(new_hex_id()),
        url=settings.url,
        model=_served_name(vllm_config),
        pid=os.getpid(),
        started_unix_s=now_s,
        heartbeat_unix_s=now_s,
        fingerprint=Fingerprint({}),
        chunk_tokens=spec.tokens_per_block[0] * spec.blocks_per_chunk,
        chunk_bytes=spec.kv_bytes_per_chunk,
        ram_tier_chunks=spec.num_chunks,
        max_model_tokens=vllm_config.model_config.max_model_len,
        vllm_version=vllm_version(),
        shared_files=tuple(leftovers.mapped_by(leftovers.family_of_this_process())),
        adapters=adapters.served(),
        keeps_replies=keeps_replies(vllm_config, kv_cache_config),
        lossy=settings.lossy,
        launch=settings.launch,
    )


def _clean_up_after_dead_engines(store: Store) -> None:
    for dead in store.dead_engines():
        removed = leftovers.reclaim(dead.shared_files)
        if removed:
            logger.info("sessiond: removed what engine %s left: %s", dead.engine_id, removed)
    store.remove_dead_engines()
    store.sweep_tmp()


def _awaited_mover(
    identity: Identity, hello: protocol.Hello, region_fd: int, announcer: Announcer
) -> AwaitedMover:
    """Return the mover that is started when the fingerprint is known."""

    def start_with(fingerprint: Fingerprint) -> StartMover:
        greeting = replace(hello, fingerprint=dict(fingerprint.fields))
        return lambda: MoverClient(greeting, region_fd)

    return AwaitedMover(identity, start_with, announcer.identified)


def _hello(
    info: EngineInfo, settings: ConnectorSettings, facts: Facts, half_bytes: int
) -> protocol.Hello:
    # Refused here, with the engine's start, and not by a mover that ends again and again.
    divide(
        settings.mover_memory_bytes, info.chunk_bytes, settings.read_threads, settings.write_threads
    )
    return protocol.Hello(
        root=str(settings.root),
        key_file=str(settings.key_file),
        engine_id=info.engine_id,
        fingerprint={},
        chunk_tokens=info.chunk_tokens,
        chunk_bytes=info.chunk_bytes,
        region_chunks=info.ram_tier_chunks,
        codec=settings.codec,
        item_bytes=_item_bytes(facts),
        read_threads=settings.read_threads,
        write_threads=settings.write_threads,
        memory_bytes=settings.mover_memory_bytes,
        segment_limit_bytes=settings.segment_limit_bytes,
        half_bytes=half_bytes,
        floor_bytes=settings.free_space_floor_bytes,
    )


def _limits(info: EngineInfo, settings: ConnectorSettings, facts: Facts) -> Limits:
    return Limits(
        chunk_tokens=info.chunk_tokens,
        ram_chunks=info.ram_tier_chunks,
        plan_deadline_s=settings.plan_deadline_s,
        job_deadline_s=settings.job_deadline_s,
        hold_deadline_s=settings.hold_deadline_s,
        groups=groups_of(Fingerprint(facts.fields), info.chunk_tokens),
    )


def _head_limit_tokens(info: EngineInfo, kv_cache_config: KVCacheConfig) -> int:
    block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    vram_tokens = kv_cache_config.num_blocks * block_tokens
    ram_tokens = info.ram_tier_chunks * info.chunk_tokens
    return _HEAD_TOKENS_PER_KV_TOKEN * (vram_tokens + ram_tokens)


def _item_bytes(facts: Facts) -> int:
    """Return the size of the numbers that KV consists of; 8-bit kinds have many names."""
    name = str(facts.fields["kv_dtype"])
    return {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}.get(name, 1)


def _served_name(vllm_config: VllmConfig) -> str:
    name = vllm_config.model_config.served_model_name
    if isinstance(name, list):
        return str(name[0])
    return str(name or vllm_config.model_config.model)
