"""``sessionctl create``."""

from typing import Annotated

import typer

from sessiond.domain.ids import parse_session_id
from sessiond_cli.care import (
    IdleTimeoutOption,
    ObjectiveOption,
    OnEvictedOption,
    PinOption,
    PlanPolicyOption,
    TtlOption,
    care_body,
    plan_body,
)
from sessiond_cli.commands.show import print_session
from sessiond_cli.daemon import Daemon
from sessiond_cli.options import DEFAULT_URL, JsonFlag, TokenOption, UrlOption
from sessiond_cli.output import Output

_PATIENCE_S = 60.0


def create(  # noqa: PLR0913 - one parameter for each argument and option
    *,
    session: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", show_default=False, help="Its id; made if left out."),
    ] = None,
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help="The model that it is for; empty: any."),
    ] = "",
    idle_timeout: IdleTimeoutOption = None,
    ttl: TtlOption = None,
    pinned: PinOption = None,
    on_evicted: OnEvictedOption = None,
    plan_policy: PlanPolicyOption = None,
    objective: ObjectiveOption = None,
    json: JsonFlag = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = "",
) -> None:
    """Create a session; nothing is stored yet. With --json: the session's object."""
    body = care_body(idle_timeout=idle_timeout, ttl=ttl, pinned=pinned, on_evicted=on_evicted)
    body |= plan_body(plan_policy=plan_policy, objective=objective)
    body["model"] = model
    if session is not None:
        body["session_id"] = parse_session_id(session)
    with Daemon(url, token) as daemon:
        made = daemon.post("/v1/sessions", body, timeout_s=_PATIENCE_S)
    Output(json).show(made, lambda screen: print_session(screen, made))
