"""``sessionctl set``."""

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
from sessiond_cli.exits import USAGE_CODE
from sessiond_cli.failures import CommandError
from sessiond_cli.options import DEFAULT_URL, JsonFlag, SessionArgument, TokenOption, UrlOption
from sessiond_cli.output import Output


def change(  # noqa: PLR0913 - one parameter for each argument and option
    *,
    session: SessionArgument,
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
    """Change how a session is looked after; what is left out stays as it is.

    'default' stands for what the daemon is set to. With --json: the session's object.
    """
    session_id = parse_session_id(session)
    body = care_body(idle_timeout=idle_timeout, ttl=ttl, pinned=pinned, on_evicted=on_evicted)
    body |= plan_body(plan_policy=plan_policy, objective=objective)
    if not body:
        raise CommandError(USAGE_CODE, "Say what to change: --idle-timeout, --ttl, --pin, …")
    with Daemon(url, token) as daemon:
        changed = daemon.patch(f"/v1/sessions/{session_id}", body)
    Output(json).show(changed, lambda screen: print_session(screen, changed))
