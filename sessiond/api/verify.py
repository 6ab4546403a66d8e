"""Routes of verification."""

from typing import Annotated, Any, Self

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from sessiond.api.callers import Tenant, Wait
from sessiond.api.models import Answer, Strict
from sessiond.domain.canonical import JsonValue
from sessiond.service.damage import fault_json
from sessiond.service.services import Services
from sessiond.service.verification import Run
from sessiond.store.findings import VerifyOptions

_PATH = "/v1/admin/verify"
_MAX_FAULTS = 1000


class VerifyIn(Strict):
    """What to verify."""

    sample: Annotated[
        float,
        Field(gt=0, le=1, description="Share of the chunks that are read; manifests always are."),
    ] = 1.0
    repair: Annotated[
        bool,
        Field(
            description="Whether broken manifests, heads and segments go to quarantine, and bad "
            "chunks get a note. Nothing is removed."
        ),
    ] = False


class VerifyOut(Answer):
    """A verification, up to now."""

    running: bool
    started_unix_s: float
    finished_unix_s: float | None
    sessions: int
    snapshots: int
    segments: int
    chunks: int
    chunks_skipped: int = Field(description="Left out by the sample.")
    stored_bytes: int = Field(description="Read from segments.")
    damaged: int
    strange: int = Field(description="Files of another server key or version.")
    quarantined: int
    faults: list[dict[str, Any]] = Field(
        description="The first thousand: what, where, why, code, session_id, generations, "
        "offset_bytes, quarantined_as."
    )

    @classmethod
    def of(cls, run: Run) -> Self:
        """Return what is told of *run*."""
        faults: list[dict[str, JsonValue]] = [
            fault_json(fault) for fault in run.report.faults[:_MAX_FAULTS]
        ]
        return cls(
            running=run.is_running,
            started_unix_s=run.started_unix_s,
            finished_unix_s=run.finished_unix_s,
            sessions=run.report.sessions,
            snapshots=run.report.snapshots,
            segments=run.report.segments,
            chunks=run.report.chunks,
            chunks_skipped=run.report.chunks_skipped,
            stored_bytes=run.report.stored_bytes,
            damaged=run.report.damaged,
            strange=run.report.strange,
            quarantined=run.report.quarantined,
            faults=faults,
        )


def verify_router(services: Services, wait_default_s: float) -> APIRouter:
    """Return the routes below ``/v1/admin/verify``."""
    router = APIRouter(prefix=_PATH, tags=["admin"])
    verifier = services.verifier
    started: dict[int | str, dict[str, Any]] = {
        202: {"model": VerifyOut, "description": "It goes on; see Location."}
    }

    @router.post("", response_model=VerifyOut, responses=started)
    async def verify(tenant: Tenant, body: VerifyIn, wait: Wait = None) -> JSONResponse:
        """Read the caller's snapshots and say what is damaged, at low priority."""
        options = VerifyOptions(
            tenant=tenant, sample=body.sample, repair=body.repair, note_bad=True
        )
        run = await verifier.start(tenant, options)
        await verifier.wait(run, wait_default_s if wait is None else wait)
        answer = VerifyOut.of(run).model_dump(mode="json")
        return JSONResponse(answer, 202 if run.is_running else 200, headers={"Location": _PATH})

    @router.get("")
    async def show_verification(tenant: Tenant) -> VerifyOut:
        """Show the caller's newest verification since the daemon's start."""
        run = verifier.newest(tenant)
        await verifier.wait(run, 0.0)
        return VerifyOut.of(run)

    return router
