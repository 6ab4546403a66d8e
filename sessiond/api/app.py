"""The application: gates, routes, problems and their description."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from sessiond import __version__
from sessiond.api import problems
from sessiond.api.events import events_router
from sessiond.api.gates import AuthGate, BodyGate, SessionIdGate, TurnsFirst
from sessiond.api.gateway import GatewayPolicy, gateway_routes, gateway_turns
from sessiond.api.gateway_docs import gateway_paths
from sessiond.api.metrics import Metrics
from sessiond.api.models_upkeep import ProblemOut
from sessiond.api.others import admin_router, engines_router, health_router, operations_router
from sessiond.api.sessions import sessions_router
from sessiond.api.sweeps import sweeps_router
from sessiond.api.verify import verify_router
from sessiond.domain.ids import DEFAULT_TENANT, TenantId
from sessiond.service.services import Services

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

_DESCRIPTION: Final = """\
Suspends an agent's vLLM KV cache to disk while the agent is away, and resumes it: with proof
that it was used again, or with the reason why it was recomputed.

Errors are problem documents (RFC 9457) with a stable `code`. Long calls answer with their
report, or with 202 and an operation after `?wait=` seconds.
"""
_PROBLEM: Final = {
    "description": "An error, as a problem document.",
    "content": {
        problems.PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}
    },
}


@dataclass(frozen=True)
class Policy:
    """Who may call, and how long a call waits."""

    tokens: Mapping[str, TenantId] = field(default_factory=dict, repr=False)  #: none: no check
    operation_wait_s: float = 300.0
    #: Whose tokens may do what concerns all tenants; without tokens everybody may.
    operators: Collection[TenantId] = frozenset({DEFAULT_TENANT})
    gateway: GatewayPolicy = field(default_factory=GatewayPolicy)


class _App(FastAPI):
    """FastAPI's application, with turns passed by."""

    turns: Mapping[str, ASGIApp] = MappingProxyType({})

    def build_middleware_stack(self) -> ASGIApp:
        """As FastAPI's, which asks for it before its first call."""
        return TurnsFirst(self.turns, super().build_middleware_stack())


def create_app(
    services: Services, policy: Policy, metrics: Metrics, lifespan: Lifespan | None = None
) -> FastAPI:
    """Return the ASGI application over *services*."""
    app = _App(
        title="sessiond",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # A redirect from /v1/sessions/ would hide that the id is missing.
        redirect_slashes=False,
    )
    app.include_router(sessions_router(services, policy.operation_wait_s))
    app.include_router(operations_router(services))
    app.include_router(events_router(services))
    app.include_router(engines_router(services))
    app.include_router(admin_router(services))
    app.include_router(sweeps_router(services))
    app.include_router(verify_router(services, policy.operation_wait_s))
    app.include_router(health_router(services, metrics))
    # First of all: turns are many, and they are matched one route after the other.
    app.router.routes[:0] = gateway_routes(services.gateway, policy.gateway)
    app.turns = _guarded_turns(services, policy)
    problems.install(app)
    # The last one added is the first one passed.
    app.add_middleware(BodyGate, gateway_bytes=policy.gateway.max_body_bytes)
    app.add_middleware(SessionIdGate)
    app.add_middleware(AuthGate, tokens=policy.tokens, operators=policy.operators)
    # Made when somebody asks: it takes longer than all the rest.
    app.openapi = cache(partial(_described, app.openapi))  # type: ignore[method-assign]
    return app


def _guarded_turns(services: Services, policy: Policy) -> dict[str, ASGIApp]:
    """Return what answers turns, behind the same gates as all other calls."""
    guarded: dict[str, ASGIApp] = {}
    for address, turn in gateway_turns(services.gateway, policy.gateway).items():
        sized = BodyGate(turn, gateway_bytes=policy.gateway.max_body_bytes)
        guarded[address] = AuthGate(sized, policy.tokens, policy.operators)
    return guarded


def _described(fastapis_own: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Let OpenAPI show problem documents where FastAPI would show its own error form."""
    schema = fastapis_own()
    schema["paths"].update(gateway_paths())
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"].setdefault("default", _PROBLEM)
    schemas = schema["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["ProblemOut"] = ProblemOut.model_json_schema()
    return schema
