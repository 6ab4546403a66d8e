"""What routes need to know of a call: the tenant, the session, the key and the wait."""

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request, Security
from fastapi.security import HTTPBearer

from sessiond.api.gates import OPERATOR_STATE, TENANT_STATE
from sessiond.domain.errors import ForbiddenError
from sessiond.domain.ids import SessionId, TenantId, parse_session_id
from sessiond.domain.plans import PlanPolicy
from sessiond.service.plans import Wish

_bearer = HTTPBearer(auto_error=False, description="A token from sessiond's configuration.")


def _tenant(request: Request, _shown: Annotated[object, Security(_bearer)]) -> TenantId:
    # The gate has checked the token; the scheme above is only for OpenAPI.
    tenant: TenantId = getattr(request.state, TENANT_STATE)
    return tenant


def _operator(request: Request, tenant: Annotated[TenantId, Depends(_tenant)]) -> TenantId:
    if not getattr(request.state, OPERATOR_STATE):
        raise ForbiddenError
    return tenant


def _session_id(
    session_id: Annotated[str, Path(description="The session's id.", examples=["agent-7"])],
) -> SessionId:
    return parse_session_id(session_id)


def _wish(
    plan_policy: Annotated[
        PlanPolicy | None, Query(description="For this call, instead of the session's own.")
    ] = None,
    objective_s: Annotated[
        float | None, Query(gt=0, le=3600, allow_inf_nan=False, description="Likewise.")
    ] = None,
) -> Wish:
    return Wish(plan_policy, objective_s)


#: How a call wants it decided between loading and computing.
Wished = Annotated[Wish, Depends(_wish)]
Tenant = Annotated[TenantId, Depends(_tenant)]
#: The tenant of a caller who may do what concerns all tenants.
Operator = Annotated[TenantId, Depends(_operator)]
SessionPath = Annotated[SessionId, Depends(_session_id)]
IdempotencyKey = Annotated[
    str,
    Header(
        description="1 to 255 printable characters of your choice. A repeated call with the "
        "same key returns the first one's operation, also one that failed: keep the key where no "
        "answer came, and take a new one for a new attempt. A call that was refused before "
        "anything began uses no key up.",
        examples=["suspend-agent-7-0001"],
    ),
]
#: How a call says after which event to go on; to be parsed.
After = Annotated[
    str,
    Query(
        description="The cursor of the last event seen. Its number will do, but where the registry "
        "was built anew only a cursor always tells. 0: from the beginning.",
        examples=["41-9f86d081884c"],
    ),
]
Wait = Annotated[
    float | None,
    Query(
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds to wait for the end; after them the answer is 202 and the call "
        "goes on. Left out: the configured default.",
        examples=[30],
    ),
]
