"""Ordinary values of the domain, of which a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sessiond.domain.engines import EngineInfo
from sessiond.domain.fingerprint import Fingerprint
from sessiond.domain.ids import (
    DEFAULT_TENANT,
    EngineId,
    SessionId,
    new_operation_id,
    new_session_id,
)
from sessiond.domain.session import Operation, OperationKind, OperationStatus, Session
from sessiond.domain.snapshot import SnapshotSummary

#: The time at which everything here happens, in Unix seconds.
NOW_UNIX_S: Final = 1_800_000_000.25
LEASE_S: Final = 30.0


def a_session(session_id: str | None = None, **fields: Any) -> Session:  # noqa: ANN401 - any field
    """Return a fresh session of the default tenant, with the given fields."""
    session = Session(
        tenant=DEFAULT_TENANT,
        session_id=SessionId(session_id) if session_id else new_session_id(),
        model="smol",
        created_unix_s=NOW_UNIX_S,
        updated_unix_s=NOW_UNIX_S,
        idle_timeout_s=None,
        pinned=False,
        deleted=False,
        snapshot=None,
        resumed_on="",
        last_outcome="",
        last_reason="",
    )
    return replace(session, **fields)


def an_engine(**fields: Any) -> EngineInfo:  # noqa: ANN401 - any field
    """Return an engine without KV groups or adapters, with the given fields."""
    engine = EngineInfo(
        engine_id=EngineId("e" * 32),
        url="",
        model="smol",
        pid=1,
        started_unix_s=0.0,
        heartbeat_unix_s=0.0,
        fingerprint=Fingerprint({}),
        chunk_tokens=128,
        chunk_bytes=1,
        ram_tier_chunks=1,
        max_model_tokens=1,
        vllm_version="0.32.0",
    )
    return replace(engine, **fields)


def an_operation(session: Session, **fields: Any) -> Operation:  # noqa: ANN401 - any field
    """Return a running suspend of *session* by the daemon ``a``, with the given fields."""
    operation = Operation(
        operation_id=new_operation_id(),
        tenant=session.tenant,
        session_id=session.session_id,
        kind=OperationKind.SUSPEND,
        status=OperationStatus.RUNNING,
        owner="a",
        lease_until_unix_s=NOW_UNIX_S + LEASE_S,
        created_unix_s=NOW_UNIX_S,
        finished_unix_s=None,
        result=None,
    )
    return replace(operation, **fields)


def a_summary(generation: int = 1, **fields: Any) -> SnapshotSummary:  # noqa: ANN401 - any field
    """Return what is told of a snapshot of ten chunks, with the given fields."""
    summary = SnapshotSummary(
        generation=generation,
        parent_generation=generation - 1,
        created_unix_s=NOW_UNIX_S + generation,
        tokens_total=165,
        tokens_restorable=160,
        chunks=10,
        raw_bytes=10 << 30,  # beyond 32 bits, as real ones are
        stored_bytes=7 << 30,
        new_bytes=6 << 30,
        shared_bytes=1 << 30,
        seconds=1.5,
        engine_id="0" * 32,
        model="smol",
    )
    return replace(summary, **fields)
