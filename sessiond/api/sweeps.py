"""Routes of sweeps and their pause; for operators, since they concern all tenants."""

from fastapi import APIRouter

from sessiond.api.callers import Operator
from sessiond.api.models_sweeps import PauseIn, PauseOut, SweepOut, SweepsOut, UnpauseOut
from sessiond.service.services import Services


def sweeps_router(services: Services) -> APIRouter:
    """Return the routes of sweeps below ``/v1/admin``."""
    router = APIRouter(prefix="/v1/admin", tags=["admin"])
    limits = services.context.limits

    @router.post("/sweep")
    async def sweep(_tenant: Operator) -> SweepOut:
        """Run the idle sweep now, for the sessions of all tenants. For operators."""
        return SweepOut.model_validate(await services.sweeper.sweep())

    @router.get("/sweep")
    async def show_sweeps(_tenant: Operator) -> SweepsOut:
        """Show what suspends sessions by itself: windows, and whether it is paused."""
        pause = await services.pauses.current()
        return SweepsOut.of(pause, limits.idle_timeout_s, limits.sweep_windows)

    @router.post("/pause")
    async def pause(tenant: Operator, body: PauseIn | None = None) -> PauseOut:
        """Stop all daemons of the registry from suspending by themselves. For operators.

        Sweeps and their windows suspend nothing, also not the one of 'POST /v1/admin/sweep'; a
        window that comes meanwhile is left out. Suspends that run go on, and whatever clients
        ask for is done. It survives restarts. A second pause takes the place of the first.
        """
        wanted = body or PauseIn()
        paused = await services.pauses.pause(tenant, wanted.reason, wanted.until_unix_s)
        return PauseOut.model_validate(paused)

    @router.post("/unpause")
    async def unpause(tenant: Operator) -> UnpauseOut:
        """Let the sweeps run again. For operators."""
        return UnpauseOut(was_paused=await services.pauses.unpause(tenant))

    return router
