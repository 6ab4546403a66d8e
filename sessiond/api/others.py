"""Routes of operations, engines, upkeep and health."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from sessiond import __version__
from sessiond.api import metrics as exposition
from sessiond.api.callers import Operator, Tenant
from sessiond.api.metrics import Metrics
from sessiond.api.models import OperationOut, PurgeIn, PurgeOut
from sessiond.api.models_engines import (
    AttestOut,
    DrainIn,
    DrainOut,
    EngineDetailOut,
    EngineOut,
    EnginesOut,
    StrangerOut,
    UndrainOut,
    kv_support,
)
from sessiond.api.models_upkeep import GcOut, HealthOut, ReadyOut
from sessiond.domain.errors import EngineWithoutConnectorError
from sessiond.domain.ids import OperationId
from sessiond.service.catalogue import Wanted
from sessiond.service.services import Services


def operations_router(services: Services) -> APIRouter:
    """Return the routes below ``/v1/operations``."""
    router = APIRouter(prefix="/v1/operations", tags=["operations"])

    @router.get("/{operation_id}")
    async def show_operation(
        tenant: Tenant, operation_id: Annotated[str, Path(examples=["op-8f2b6c1d9e3a4b5c6d7e8f90"])]
    ) -> OperationOut:
        """Show how far a long call is, and its result."""
        found = await services.operations.get(tenant, OperationId(operation_id))
        return OperationOut.of(found, services.operations.queue_position(found))

    return router


def engines_router(services: Services) -> APIRouter:
    """Return the routes below ``/v1/engines``."""
    router = APIRouter(prefix="/v1/engines", tags=["engines"])
    engines, plans = services.context.engines, services.context.plans

    @router.get("")
    async def list_engines(_tenant: Tenant) -> EnginesOut:
        """List the running engines, and configured servers that are none of ours."""
        error = EngineWithoutConnectorError()
        strangers = [
            StrangerOut(url=url, code=error.code, detail=error.message, hint=error.hint)
            for url in await engines.strangers()
        ]
        shown = [
            EngineOut.of(engine, plans.slow_paths_of(engine.engine_id))
            for engine in await engines.live()
        ]
        return EnginesOut(engines=shown, strangers=strangers, kv_support=kv_support())

    @router.get("/{engine_id}")
    async def show_engine(_tenant: Tenant, engine_id: str) -> EngineDetailOut:
        """Show a running engine with its fingerprint."""
        engine = await engines.get(engine_id)
        return EngineDetailOut.of(engine, plans.slow_paths_of(engine_id))

    @router.post("/{engine_id}/attest")
    async def attest_engine(tenant: Operator, engine_id: str) -> AttestOut:
        """As an operator, say that an engine's weights are its files': its tier goes on again.

        The engine's caches are reset first, and requests that run in it begin anew.
        """
        return AttestOut.of(await services.attestations.attest(tenant, engine_id))

    @router.post("/{engine_id}/drain")
    async def drain_engine(
        tenant: Operator, engine_id: str, body: DrainIn | None = None
    ) -> DrainOut:
        """As an operator, suspend all sessions of an engine, of all tenants, before it stops.

        The most valuable ones go first: those with the most tokens that no snapshot has, which
        count half for each hour without a turn. The answer comes when nothing is left to store,
        after the deadline at the latest; calling again looks again. Until undrain, or its end,
        the engine gets no new turns and resumes if another one can serve them.
        """
        deadline_s = (body or DrainIn()).deadline_s
        return DrainOut.model_validate(await services.drainer.drain(tenant, engine_id, deadline_s))

    @router.post("/{engine_id}/undrain")
    async def undrain_engine(_tenant: Operator, engine_id: str) -> UndrainOut:
        """As an operator, let a drained engine serve again as any other."""
        was_draining = await services.drainer.undrain(engine_id)
        return UndrainOut(engine_id=engine_id, was_draining=was_draining)

    return router


def admin_router(services: Services) -> APIRouter:
    """Return the routes below ``/v1/admin``."""
    router = APIRouter(prefix="/v1/admin", tags=["admin"])

    @router.post("/gc")
    async def gc(_tenant: Operator) -> GcOut:
        """Expire, prune, evict and collect now, for all tenants' sessions. For operators."""
        return GcOut.model_validate(await services.retention.run(full=True))

    @router.post("/purge")
    async def purge(tenant: Tenant, body: PurgeIn) -> PurgeOut:
        """Delete the caller's sessions that match; without ``"dry_run": false`` only name them."""
        wanted = Wanted(body.model, body.has_snapshot, body.pinned)
        report = await services.purger.purge(tenant, wanted, dry_run=body.dry_run)
        return PurgeOut(
            dry_run=body.dry_run,
            matched=report.matched,
            deleted=report.deleted,
            failed=report.failed,
            session_ids=list(report.session_ids),
        )

    return router


def health_router(services: Services, metrics: Metrics) -> APIRouter:
    """Return the routes that need no token."""
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def healthz() -> HealthOut:
        """Tell that the daemon lives; looks at nothing else."""
        return HealthOut(status="ok", version=__version__)

    @router.get("/readyz")
    async def readyz() -> ReadyOut:
        """Tell whether registry and store answer. Engines may come and go."""
        await services.context.blocking(services.context.registry.check)
        live = await services.context.engines.live()
        paused = await services.pauses.current() is not None
        return ReadyOut(status="ready", live_engines=len(live), sweeps_paused=paused)

    @router.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        """Show what operations did, in Prometheus' text form."""
        live = await services.context.engines.live()
        off = sum(bool(engine.tier_off) for engine in live)
        waiting = services.context.resume_queue.waiting
        plans = services.context.plans
        slow = (one for engine in live for one in plans.slow_paths_of(engine.engine_id))
        text = metrics.exposition(len(live), off, waiting, slow)
        return Response(text, media_type=exposition.CONTENT_TYPE)

    return router
